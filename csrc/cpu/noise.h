// Philox on sixteen lanes, and the exponential noise E(seed, position, id) of coupled sampling.
#pragma once
#include "simd/simd_log.h"
#include "ssd/philox.h"

namespace ssd {
namespace SSD_ISA {

struct Noise {  // one seed, position and purpose
  uint64_t seed;
  uint32_t position, purpose;
};

// Lane i of words[j]: word j of block[i].
SSD_INLINE void philox(const Noise& n, u32x16 block, u32x16 words[4]) {
  u32x16 c0 = set1_u32(n.position), c1 = block, c2 = set1_u32(n.purpose), c3 = set1_u32(0);
  uint32_t k0 = uint32_t(n.seed), k1 = uint32_t(n.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    u32x16 hi0, lo0, hi1, lo1;
    mul_wide(c0, kPhiloxM0, hi0, lo0);
    mul_wide(c2, kPhiloxM1, hi1, lo1);
    c0 = hi1 ^ c1 ^ set1_u32(k0), c1 = lo1;
    c2 = hi0 ^ c3 ^ set1_u32(k1), c3 = lo0;
    k0 += kPhiloxW0, k1 += kPhiloxW1;
  }
  words[0] = c0, words[1] = c1, words[2] = c2, words[3] = c3;
}

// The words of ids first..first + 63 in order; first is a multiple of 4.
SSD_INLINE void noise64(const Noise& n, int64_t first, u32x16 words[4]) {
  philox(n, load_u32((const uint32_t*)interleave) + set1_u32(uint32_t(first / 4)), words);
  transpose(words);
}

// The words of ids[i..i + 15] in an array of n ids.
SSD_INLINE u32x16 noise16(const Noise& noise, const int64_t* ids, int64_t i, int64_t n) {
  uint32_t block[16], word[16], all[4][16];
  for (int j = 0; j < 16; ++j) {
    uint32_t id = i + j < n ? uint32_t(ids[i + j]) : 0;
    block[j] = id / 4, word[j] = id % 4;
  }
  u32x16 words[4];
  philox(noise, load_u32(block), words);
  for (int j = 0; j < 4; ++j) store_u32(all[j], words[j]);
  for (int j = 0; j < 16; ++j) block[j] = all[word[j]][j];
  return load_u32(block);
}

SSD_INLINE f32x16 open_uniform(u32x16 word) {
  return min((to_float(word) + set1(0.5f)) * set1(0x1p-32f), set1(kMaxUniform));
}

// log E, from -22.88 to 2.82.
SSD_INLINE f32x16 log_exponential(u32x16 word) { return log(zero() - log1m(open_uniform(word))); }

// A cheap upper bound of z - log E for z <= 0: E >= w, and the bits of a float give a lower bound of its logarithm
// (log2 (1 + m) >= m). The margins cover all rounding.
constexpr float kMinLogE = -22.9f, kMaxLogE = 2.82f;
SSD_INLINE f32x16 score_bound(f32x16 z, u32x16 word) {
  f32x16 w = (to_float(word) + set1(0.5f)) * set1(0x1p-32f);
  f32x16 up = fma(z, set1(1.f - 0x1p-20f), set1(88.0296919f + 1e-3f));           // 127 ln 2
  return fma(to_float_signed(as_u32(w)), set1(-8.26295832e-8f), up);  // 2^-23 ln 2
}

}  // namespace SSD_ISA
}  // namespace ssd
