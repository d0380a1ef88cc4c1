// The softmax of one span, and how the spans of a vector are merged.
#pragma once
#include "simd/simd.h"

namespace ssd {
namespace SSD_ISA {

// Replaces s[0, n) by e^(s - m) and returns the maximum m and the sum l.
SSD_INLINE void softmax(float* s, int n, float& m, float& l) {
  f32x16 top = set1(-INFINITY);
  for (int i = 0; i < n; i += 16)
    top = max(n - i < 16 ? select((1u << (n - i)) - 1, load(s + i), top) : load(s + i), top);
  m = reduce_max(top);
  f32x16 sum = zero();
  for (int i = 0; i < n; i += 16) {
    f32x16 e = exp(load(s + i) - set1(m));
    if (n - i < 16) e = select((1u << (n - i)) - 1, e, zero());
    store(s + i, e);
    sum = sum + e;
  }
  l = reduce_add(sum);
}

SSD_INLINE float exp1(float x) {
  float t[16];
  store(t, exp(set1(x)));
  return t[0];
}

// Merges a span (ms, ls, y) into the state (m, l, o) of a vector.
SSD_INLINE void merge(float& m, float& l, float* o, float ms, float ls, const float* y, int d) {
  if (m == -INFINITY && l == 0) {
    m = ms, l = ls;
    std::memcpy(o, y, d * sizeof(float));
    return;
  }
  const float top = m > ms ? m : ms, old = exp1(m - top), now = exp1(ms - top);
  l = l * old + ls * now;
  for (int i = 0; i < d; i += 16) store(o + i, fma(load(o + i), set1(old), load(y + i) * set1(now)));
  m = top;
}

}  // namespace SSD_ISA
}  // namespace ssd
