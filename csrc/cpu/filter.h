// One row of logits, scaled, and what top-k, top-p and min-p (in this order) leave of it.
#pragma once
#include "select.h"
#include "simd/simd_log.h"

namespace ssd {
namespace SSD_ISA {

struct Row {
  const float* logits;
  int64_t n;
  float max;      // the greatest logit
  float inverse;  // 1 / temperature
};

// Sixteen logits from i on, -inf beyond the end.
SSD_INLINE f32x16 load_logits(const float* logits, int64_t i, int64_t n) {
  const float* p = logits + i;
  float t[16];
  if (i + 16 > n) {
    for (int j = 0; j < 16; ++j) t[j] = i + j < n ? p[j] : -INFINITY;
    p = t;
  }
  return load(p);
}

// z = (logit - max) / temperature, at most 0.
SSD_INLINE f32x16 scaled(const Row& r, int64_t i) {
  return (load_logits(r.logits, i, r.n) - set1(r.max)) * set1(r.inverse);
}

// The greatest logit; NaN if one of them is NaN or +inf.
inline float max_logit(const float* logits, int64_t n) {
  f32x16 top = set1(-INFINITY), inf = set1(INFINITY);
  uint32_t finite = 0xffff;
  for (int64_t i = 0; i < n; i += 16) {
    f32x16 x = load_logits(logits, i, n);
    finite &= less(x, inf);
    top = max(top, x);
  }
  return finite == 0xffff ? reduce_max(top) : NAN;
}

// The lowest id of the greatest logit.
inline int64_t first_max(const float* logits, int64_t n, float max) {
  for (int64_t i = 0;; i += 16)
    if (uint32_t m = less(load_logits(logits, i, n), set1(max)) ^ 0xffff) return i + __builtin_ctz(m);
}

// Sum of exp z: lanes in float over 1024 elements, then in double.
inline double exp_sum(const Row& r) {
  double total = 0;
  for (int64_t i = 0; i < r.n; i += 1024) {
    f32x16 s = zero();
    for (int64_t j = i; j < r.n && j < i + 1024; j += 16) s = s + exp(scaled(r, j));
    total += reduce_add(s);
  }
  return total;
}

// A token survives if z > cut.z, or z == cut.z and id <= cut.id.
struct Cut {
  float z = -INFINITY;
  int64_t id = -1;
  bool keeps(float other, int64_t i) const { return other > z || (other == z && i <= id); }
};

// Keys in ascending order: z <= 0 descending, then ids ascending.
SSD_INLINE uint64_t to_key(float z, int64_t id) { return uint64_t(to_bits(z) & 0x7fffffffu) << 32 | uint64_t(id); }
SSD_INLINE Cut to_cut(uint64_t key) { return {-from_bits(uint32_t(key >> 32)), int64_t(key & 0xffffffffu)}; }

inline double key_mass(const uint64_t* keys, int64_t n) {
  double total = 0;
  for (int64_t i = 0; i < n; i += 16) {
    float z[16];
    for (int j = 0; j < 16; ++j) z[j] = i + j < n ? -from_bits(uint32_t(keys[i + j] >> 32)) : -INFINITY;
    total += reduce_add(exp(load(z)));
  }
  return total;
}

// Collects the keys of the tokens with low < z <= high. Where they exceed `room`, it drops some that are not among the
// k best.
inline int64_t collect(const Row& r, float low, float high, int64_t k, int64_t room, uint64_t* keys) {
  int64_t count = 0;
  for (int64_t i = 0; i < r.n; i += 16) {
    f32x16 v = scaled(r, i);
    uint32_t m = less(set1(low), v) & ~less(set1(high), v);
    if (!m) continue;
    if (count + 16 > room) low = to_cut(keep_smallest(keys, count, k)).z, count = k;
    float z[16];
    store(z, v);
    for (; m; m &= m - 1) {
      int lane = __builtin_ctz(m);
      keys[count++] = to_key(z[lane], i + lane);
    }
  }
  return count;
}

// The mass, summed from the top down, reaches `need` somewhere in low < z <= high; `above` is the mass with z > high.
struct Band {
  float low = -24.f, high = 0.f;
  double above = 0;
};

// Four passes, each of which narrows the band to a quarter.
inline Band nucleus_band(const Row& r, double need) {
  Band band;
  float* e = float_scratch(0, r.n + 16);
  for (int64_t i = 0; i < r.n; i += 16) store(e + i, exp(scaled(r, i)));
  for (int pass = 0; pass < 4; ++pass) {
    double mass[3] = {};
    float at[3];
    for (int k = 0; k < 3; ++k) at[k] = band.high + (band.low - band.high) * 0.25f * float(k + 1);
    for (int64_t i = 0; i < r.n; i += 1024) {
      f32x16 s[3] = {zero(), zero(), zero()};
      for (int64_t j = i; j < r.n && j < i + 1024; j += 16) {
        f32x16 z = scaled(r, j), v = load(e + j);
        for (int k = 0; k < 3; ++k) s[k] = s[k] + where_less(set1(at[k]), z, v);
      }
      for (int k = 0; k < 3; ++k) mass[k] += reduce_add(s[k]);
    }
    int k = 0;
    while (k < 3 && mass[k] < need) ++k;
    if (k > 0) band.high = at[k - 1], band.above = mass[k - 1];
    if (k < 3) band.low = at[k];
  }
  if (band.low == Band().low) band.low = -INFINITY;
  return band;
}

inline Cut filter(const Row& r, int64_t top_k, float top_p, float min_p) {
  Cut cut;
  bool some = top_k > 0 && top_k < r.n;
  int64_t room = (some ? std::min(2 * top_k + 64, r.n) : r.n) + 16;
  uint64_t* keys = some || top_p < 1.f ? key_scratch(room) : nullptr;
  int64_t count = 0;
  if (some) {
    count = collect(r, -INFINITY, 0.f, top_k, room, keys);
    if (count >= top_k) cut = to_cut(keep_smallest(keys, count, top_k)), count = top_k;
  }
  if (top_p < 1.f) {
    double need = top_p * (some ? key_mass(keys, count) : exp_sum(r));
    if (!some) {
      Band band = nucleus_band(r, need);
      need -= band.above;
      count = collect(r, band.low, band.high, r.n, room, keys);
    }
    if (count) cut = to_cut(nucleus(keys, count, need, key_mass));
  }
  if (min_p > 0.f && std::log(min_p) > cut.z) cut = {std::log(min_p), r.n};
  return cut;
}

}  // namespace SSD_ISA
}  // namespace ssd
