// What the cores can do at best: bytes read per second, multiply-adds per second.
#pragma once
#include "kernels.h"
#include "simd/simd.h"

namespace ssd {
namespace SSD_ISA {

// XOR of the 8-byte words of lines first to last, read as four streams, which hide more latency than one.
inline uint64_t read_lines(const ProbeReadArgs& a, int64_t first, int64_t last) {
  typedef uint64_t half_line __attribute__((vector_size(32)));
  constexpr int streams = 4;
  int64_t n = (last - first) / streams;
  const char* p = a.data + first * 64;
  half_line x[2 * streams] = {};
  for (int64_t i = 0; i < n; ++i) {
#pragma GCC unroll 2 * streams
    for (int s = 0; s < 2 * streams; ++s) {
      half_line v;
      std::memcpy(&v, p + (s / 2 * n + i) * 64 + s % 2 * 32, 32);
      x[s] ^= v;
    }
  }
  uint64_t word = 0, w;
  for (half_line v : x) word ^= v[0] ^ v[1] ^ v[2] ^ v[3];
  for (const char* q = p + streams * n * 64; q < a.data + last * 64; q += 8) std::memcpy(&w, q, 8), word ^= w;
  return word;
}

inline void probe_read(const ProbeReadArgs& a, Team& team) {
  team.each(a.parts(), 1,
            [&](int64_t i) { a.result[i] = read_lines(a, i * kProbeLines, std::min(a.lines, (i + 1) * kProbeLines)); });
}

// Independent chains of multiply-adds, as many as the registers hold beside the two constants.
inline void fma_chains(const ProbeFmaArgs& a, int64_t part) {
#if defined(SSD_AVX512)
  constexpr int chains = 12;
#else
  constexpr int chains = 6;
#endif
  f32x16 x[chains], half = set1(0.5f), one = set1(1.f);
  for (int c = 0; c < chains; ++c) x[c] = set1(float(c));
  for (int64_t i = 0; i < a.iterations; ++i) {
#pragma GCC unroll chains
    for (int c = 0; c < chains; ++c) x[c] = fma(x[c], half, one);
  }
  f32x16 sum = x[0];
  for (int c = 1; c < chains; ++c) sum = sum + x[c];
  a.result[part] = reduce_add(sum);
  a.flops[part] = 2. * 16 * chains * double(a.iterations);
}

inline void probe_fma(const ProbeFmaArgs& a, Team& team) {
  team.each(a.parts, 1, [&](int64_t part) { fma_chains(a, part); });
}

}  // namespace SSD_ISA
}  // namespace ssd
