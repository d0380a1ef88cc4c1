// RMSNorm: sixteen running sums of squares (lane = element mod 16), which a fixed tree adds up.
#pragma once
#include "kernels.h"
#include "simd/simd.h"

namespace ssd {
namespace SSD_ISA {

SSD_INLINE void norm_row(const RmsNormArgs& a, int64_t r) {
  const float* x = a.x + r * a.n;
  float* y = a.y + r * a.y_stride;
  f32x16 ss = zero();
  for (int64_t i = 0; i < a.n; i += 16) {
    int m = int(a.n - i < 16 ? a.n - i : 16);
    f32x16 v = load_n(x + i, m);
    if (a.residual) v = v + load_n(a.residual + r * a.n + i, m);
    if (a.sum) store_n(a.sum + r * a.n + i, v, m);
    store_n(y + i, v, m);
    ss = fma(v, v, ss);
  }
  f32x16 scale = set1(1.f / std::sqrt(reduce_add(ss) / float(a.n) + a.eps));
  for (int64_t i = 0; i < a.n; i += 16) {
    int m = int(a.n - i < 16 ? a.n - i : 16);
    store_n(y + i, load_n(y + i, m) * scale * load_n(a.weight + i, m), m);
  }
}

inline void rms_norm(const RmsNormArgs& a, Team& team) {
  team.each(a.rows, items_of(8 * a.n), [&](int64_t r) { norm_row(a, r); });
}

}  // namespace SSD_ISA
}  // namespace ssd
