// log and log1p on sixteen lanes, with full relative accuracy near log 1 = 0.
#pragma once
#include "simd_int.h"

namespace ssd {
namespace SSD_ISA {

// log x for normal positive x, error below 2 ulp.
// x = 2^k (1 + f) with 1 + f in [sqrt 1/2, sqrt 2); log(1 + f) = f - f^2/2 + f^3 P(f), with P a minimax polynomial.
SSD_INLINE f32x16 log(f32x16 x) {
  const u32x16 sqrt_half = set1_u32(0x3f3504f3);
  u32x16 k = shift_right_signed<23>(as_u32(x) - sqrt_half);
  f32x16 f = as_float(as_u32(x) - shift_left<23>(k)) - set1(1.f);
  f32x16 p = set1(0.0674647763f);
  p = fma(p, f, set1(-0.116756119f));
  p = fma(p, f, set1(0.118882157f));
  p = fma(p, f, set1(-0.124055989f));
  p = fma(p, f, set1(0.142195463f));
  p = fma(p, f, set1(-0.166679949f));
  p = fma(p, f, set1(0.200021192f));
  p = fma(p, f, set1(-0.250000089f));
  p = fma(p, f, set1(0.333333135f));
  f32x16 e = to_float_signed(k), f2 = f * f;
  p = fma(p, f, set1(-0.5f));
  p = fma(f2, p, e * set1(-2.12194440e-4f));     // ln 2 = 0.693359375 - 2.1219444e-4
  return fma(e, set1(0.693359375f), f + p);
}

// log(1 - w) for w in (0, 1 - 2^-24], error below 2 ulp: what 1 - w lost by rounding is added back.
SSD_INLINE f32x16 log1m(f32x16 w) {
  f32x16 u = set1(1.f) - w;
  f32x16 lost = (set1(1.f) - u) - w;
  return log(u) + lost / u;
}

}  // namespace SSD_ISA
}  // namespace ssd
