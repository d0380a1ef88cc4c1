// Packed weights of a linear layer [N, K], in panels of 16 outputs; zeros fill the last panel.
//   fp32  float    [P][K][16]
//   bf16  uint16   [P][K][16], the 16 outputs in pairs: element 2 i is output i, 2 i + 1 is output i + 8
//   int8  bytes    [P][G][1056], groups of 64 inputs: 16 blocks of 4 inputs [output][4], then 16 fp16 scales
// Blocks of a GGUF file keep their numbers; they are groups of 32 inputs with fp16 scales d and minima m:
//   q8_0  bytes    [P][G][544]: 8 blocks of 4 inputs [output][4], then 16 d; a weight is d q
//   q4_0  bytes    [P][G][288]: 4 blocks of 8 inputs [output][4], 16 d; d (q - 8); block j has inputs 4 j .. 4 j + 3 in
//                  the low halves of its bytes, 16 + 4 j .. 16 + 4 j + 3 in the high ones
//   q4_1  bytes    [P][G][320]: the same, 16 d, 16 m; d q + m
#pragma once
#include <cstdint>

namespace ssd {

constexpr int kPanel = 16;

enum class Format { fp32, bf16, int8, q8_0, q4_0, q4_1 };

constexpr bool quantised(Format f) { return f != Format::fp32 && f != Format::bf16; }
constexpr bool four_bits(Format f) { return f == Format::q4_0 || f == Format::q4_1; }
constexpr int group_of(Format f) { return f == Format::int8 ? 64 : 32; }  // inputs that share a scale
constexpr int quant_bytes(Format f) { return group_of(f) * kPanel / (four_bits(f) ? 2 : 1); }
constexpr int group_bytes(Format f) { return quant_bytes(f) + 2 * kPanel * (f == Format::q4_1 ? 2 : 1); }

constexpr int64_t panels(int64_t n) { return (n + kPanel - 1) / kPanel; }
constexpr int64_t groups(int64_t k, Format f) { return (k + group_of(f) - 1) / group_of(f); }
constexpr int64_t padded(int64_t k) { return (k + 63) / 64 * 64; }  // inputs of a row in int8, whatever the format

}  // namespace ssd
