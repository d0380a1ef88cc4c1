// Packed weights of a linear layer [N, K], in panels of 16 outputs; the last panel is filled with zeros.
//   fp32  float    [P][K][16]
//   bf16  uint16   [P][K][16], the 16 outputs in pairs: element 2 i is output i, 2 i + 1 is output i + 8
//   int8  bytes    [P][G][1056], groups of 64 inputs: 16 blocks of 4 inputs [output][4], then 16 fp16 scales
#pragma once
#include <cstdint>

namespace ssd {

constexpr int kPanel = 16, kGroup = 64, kGroupBytes = kGroup * kPanel + 2 * kPanel;

enum class Format { fp32, bf16, int8 };

constexpr int64_t panels(int64_t n) { return (n + kPanel - 1) / kPanel; }
constexpr int64_t groups(int64_t k) { return (k + kGroup - 1) / kGroup; }

}  // namespace ssd
