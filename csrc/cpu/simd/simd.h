// Sixteen float lanes: the unit of every CPU kernel.
//
// The three forms (AVX-512, AVX2, portable) have the same lane order and the same rounding, so a kernel written on
// f32x16 gives the same bits on each of them. Include this with SSD_ISA set to the namespace of the form being
// compiled, and SSD_AVX2 or SSD_AVX512 set to 1 (g++ 12 does not define __AVX2__ after a target pragma).
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#if SSD_AVX2 || SSD_AVX512
#include <immintrin.h>
#endif
#include "types.h"

namespace ssd {
namespace SSD_ISA {

#define SSD_INLINE inline __attribute__((always_inline))

// f(0), ..., f(N - 1) with constant indices, so that arrays of vectors stay in registers.
template <int N, class F, int I = 0> SSD_INLINE void unroll(F&& f) {
  if constexpr (I < N) {
    f(std::integral_constant<int, I>{});
    unroll<N, F, I + 1>(static_cast<F&&>(f));
  }
}
#define SSD_EACH(i) [&](auto i) __attribute__((always_inline))

#if SSD_AVX512

struct f32x16 { __m512 v; };
SSD_INLINE f32x16 zero() { return {_mm512_setzero_ps()}; }
SSD_INLINE f32x16 set1(float x) { return {_mm512_set1_ps(x)}; }
SSD_INLINE f32x16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
SSD_INLINE f32x16 load(const bf16* p) {
  __m512i w = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(w, 16))};
}
SSD_INLINE f32x16 load(const fp16* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))}; }
// Sixteen bf16 stored as pairs: dword i holds lane i (low half) and lane i + 8 (high half).
SSD_INLINE f32x16 load_pairs(const bf16* p) {
  __m512i w = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i*)p));
  __m512i shift = _mm512_inserti64x4(_mm512_set1_epi32(16), _mm256_setzero_si256(), 1);
  return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_sllv_epi32(w, shift), _mm512_set1_epi32(0xffff0000)))};
}
SSD_INLINE void store(float* p, f32x16 a) { _mm512_storeu_ps(p, a.v); }
SSD_INLINE void store(bf16* p, f32x16 a) {  // to nearest, ties to even; NaN stays NaN
  __m512i x = _mm512_castps_si512(a.v);
  __m512i r = _mm512_add_epi32(_mm512_add_epi32(x, _mm512_set1_epi32(0x7fff)),
                               _mm512_and_si512(_mm512_srli_epi32(x, 16), _mm512_set1_epi32(1)));
  r = _mm512_mask_mov_epi32(r, _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q), _mm512_set1_epi32(0x7fc00000));
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(r, 16)));
}
SSD_INLINE void store(fp16* p, f32x16 a) {
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
SSD_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
SSD_INLINE f32x16 operator+(f32x16 a, f32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
SSD_INLINE f32x16 operator-(f32x16 a, f32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
SSD_INLINE f32x16 operator*(f32x16 a, f32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
SSD_INLINE f32x16 operator/(f32x16 a, f32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
// max and min return b when either is NaN, as the instructions do.
SSD_INLINE f32x16 max(f32x16 a, f32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }
SSD_INLINE f32x16 min(f32x16 a, f32x16 b) { return {_mm512_min_ps(a.v, b.v)}; }
// Lane i of a where bit i of m is set, else of b.
SSD_INLINE f32x16 select(uint32_t m, f32x16 a, f32x16 b) { return {_mm512_mask_blend_ps((__mmask16)m, b.v, a.v)}; }
SSD_INLINE uint32_t less(f32x16 a, f32x16 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ); }
// x in lanes where a < b (or not), 0 in the others.
SSD_INLINE f32x16 where_less(f32x16 a, f32x16 b, f32x16 x) { return {_mm512_maskz_mov_ps((__mmask16)less(a, b), x.v)}; }
SSD_INLINE f32x16 unless_less(f32x16 a, f32x16 b, f32x16 x) {
  return {_mm512_maskz_mov_ps((__mmask16)~less(a, b), x.v)};
}
// 2^n for the integer held in the low bits of n + 1.5 * 2^23.
SSD_INLINE f32x16 exp2_int(f32x16 magic) {
  return {_mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_add_epi32(_mm512_castps_si512(magic.v), _mm512_set1_epi32(127)), 23))};
}
SSD_INLINE void halves(f32x16 a, __m256& lo, __m256& hi) {
  lo = _mm512_castps512_ps256(a.v);
  hi = _mm512_extractf32x8_ps(a.v, 1);
}

#elif SSD_AVX2

struct f32x16 { __m256 lo, hi; };
SSD_INLINE f32x16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
SSD_INLINE f32x16 set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
SSD_INLINE f32x16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
SSD_INLINE f32x16 load(const bf16* p) {
  __m256i a = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p));
  __m256i b = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p + 1));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(b, 16))};
}
SSD_INLINE f32x16 load(const fp16* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p + 1))};
}
// Sixteen bf16 stored as pairs: dword i holds lane i (low half) and lane i + 8 (high half).
SSD_INLINE f32x16 load_pairs(const bf16* p) {
  __m256i w = _mm256_loadu_si256((const __m256i*)p);
  return {_mm256_castsi256_ps(_mm256_slli_epi32(w, 16)),
          _mm256_castsi256_ps(_mm256_and_si256(w, _mm256_set1_epi32(0xffff0000)))};
}
SSD_INLINE void store(float* p, f32x16 a) { _mm256_storeu_ps(p, a.lo), _mm256_storeu_ps(p + 8, a.hi); }
SSD_INLINE __m256i round_bf16(__m256 a) {
  __m256i x = _mm256_castps_si256(a);
  __m256i r = _mm256_add_epi32(_mm256_add_epi32(x, _mm256_set1_epi32(0x7fff)),
                               _mm256_and_si256(_mm256_srli_epi32(x, 16), _mm256_set1_epi32(1)));
  r = _mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(r), _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000)),
                                           _mm256_cmp_ps(a, a, _CMP_UNORD_Q)));
  return _mm256_srli_epi32(r, 16);
}
SSD_INLINE void store(bf16* p, f32x16 a) {  // to nearest, ties to even; NaN stays NaN
  __m256i w = _mm256_packus_epi32(round_bf16(a.lo), round_bf16(a.hi));
  _mm256_storeu_si256((__m256i*)p, _mm256_permute4x64_epi64(w, 0xd8));
}
SSD_INLINE void store(fp16* p, f32x16 a) {
  _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  _mm_storeu_si128((__m128i*)p + 1, _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
SSD_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
SSD_INLINE f32x16 operator+(f32x16 a, f32x16 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
SSD_INLINE f32x16 operator-(f32x16 a, f32x16 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
SSD_INLINE f32x16 operator*(f32x16 a, f32x16 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
SSD_INLINE f32x16 operator/(f32x16 a, f32x16 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
// max and min return b when either is NaN, as the instructions do.
SSD_INLINE f32x16 max(f32x16 a, f32x16 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
SSD_INLINE f32x16 min(f32x16 a, f32x16 b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
SSD_INLINE __m256 lane_mask(uint32_t m) {
  const __m256i bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32((int)m), bits), bits));
}
// Lane i of a where bit i of m is set, else of b.
SSD_INLINE f32x16 select(uint32_t m, f32x16 a, f32x16 b) {
  return {_mm256_blendv_ps(b.lo, a.lo, lane_mask(m)), _mm256_blendv_ps(b.hi, a.hi, lane_mask(m >> 8))};
}
SSD_INLINE uint32_t less(f32x16 a, f32x16 b) {
  return _mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)) |
         _mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)) << 8;
}
// x in lanes where a < b (or not), 0 in the others.
SSD_INLINE f32x16 where_less(f32x16 a, f32x16 b, f32x16 x) {
  return {_mm256_and_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), x.lo),
          _mm256_and_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ), x.hi)};
}
SSD_INLINE f32x16 unless_less(f32x16 a, f32x16 b, f32x16 x) {
  return {_mm256_andnot_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), x.lo),
          _mm256_andnot_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ), x.hi)};
}
SSD_INLINE __m256 exp2_int(__m256 m) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_castps_si256(m), _mm256_set1_epi32(127)), 23));
}
// 2^n for the integer held in the low bits of n + 1.5 * 2^23.
SSD_INLINE f32x16 exp2_int(f32x16 magic) { return {exp2_int(magic.lo), exp2_int(magic.hi)}; }
SSD_INLINE void halves(f32x16 a, __m256& lo, __m256& hi) { lo = a.lo, hi = a.hi; }

#else

struct f32x16 { float v[16]; };
#define SSD_LANES(expr)                         \
  f32x16 r;                                     \
  for (int i = 0; i < 16; ++i) r.v[i] = (expr); \
  return r
SSD_INLINE f32x16 zero() { SSD_LANES(0.f); }
SSD_INLINE f32x16 set1(float x) { SSD_LANES(x); }
SSD_INLINE f32x16 load(const float* p) { SSD_LANES(p[i]); }
SSD_INLINE f32x16 load(const bf16* p) { SSD_LANES(to_float(p[i])); }
SSD_INLINE f32x16 load(const fp16* p) { SSD_LANES(to_float(p[i])); }
SSD_INLINE f32x16 load_pairs(const bf16* p) { SSD_LANES(to_float(p[i % 8 * 2 + i / 8])); }
SSD_INLINE void store(float* p, f32x16 a) { std::memcpy(p, a.v, sizeof a.v); }
SSD_INLINE void store(bf16* p, f32x16 a) {
  for (int i = 0; i < 16; ++i) p[i] = to_bf16(a.v[i]);
}
SSD_INLINE void store(fp16* p, f32x16 a) {
  for (int i = 0; i < 16; ++i) p[i] = to_fp16(a.v[i]);
}
SSD_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) { SSD_LANES(std::fma(a.v[i], b.v[i], c.v[i])); }
SSD_INLINE f32x16 operator+(f32x16 a, f32x16 b) { SSD_LANES(a.v[i] + b.v[i]); }
SSD_INLINE f32x16 operator-(f32x16 a, f32x16 b) { SSD_LANES(a.v[i] - b.v[i]); }
SSD_INLINE f32x16 operator*(f32x16 a, f32x16 b) { SSD_LANES(a.v[i] * b.v[i]); }
SSD_INLINE f32x16 operator/(f32x16 a, f32x16 b) { SSD_LANES(a.v[i] / b.v[i]); }
// max and min return b when either is NaN, as the instructions of the other forms do.
SSD_INLINE f32x16 max(f32x16 a, f32x16 b) { SSD_LANES(a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
SSD_INLINE f32x16 min(f32x16 a, f32x16 b) { SSD_LANES(a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
// Lane i of a where bit i of m is set, else of b.
SSD_INLINE f32x16 select(uint32_t m, f32x16 a, f32x16 b) { SSD_LANES(m >> i & 1 ? a.v[i] : b.v[i]); }
// x in lanes where a < b (or not), 0 in the others.
SSD_INLINE f32x16 where_less(f32x16 a, f32x16 b, f32x16 x) { SSD_LANES(a.v[i] < b.v[i] ? x.v[i] : 0.f); }
SSD_INLINE f32x16 unless_less(f32x16 a, f32x16 b, f32x16 x) { SSD_LANES(a.v[i] < b.v[i] ? 0.f : x.v[i]); }
SSD_INLINE uint32_t less(f32x16 a, f32x16 b) {
  uint32_t m = 0;
  for (int i = 0; i < 16; ++i) m |= uint32_t(a.v[i] < b.v[i]) << i;
  return m;
}
// 2^n for the integer held in the low bits of n + 1.5 * 2^23.
SSD_INLINE f32x16 exp2_int(f32x16 magic) { SSD_LANES(from_bits((to_bits(magic.v[i]) + 127u) << 23)); }
#undef SSD_LANES

#endif

// Sum and maximum of the lanes: lane i is combined with i + 8, then + 4, + 2, + 1.
SSD_INLINE float reduce_add(f32x16 a) {
  float t[16];
  store(t, a);
  for (int h = 8; h; h /= 2)
    for (int i = 0; i < h; ++i) t[i] += t[i + h];
  return t[0];
}
SSD_INLINE float reduce_max(f32x16 a) {  // ignores NaN lanes
  float t[16];
  store(t, a);
  for (int h = 8; h; h /= 2)
    for (int i = 0; i < h; ++i) t[i] = t[i + h] > t[i] || t[i] != t[i] ? t[i + h] : t[i];
  return t[0];
}

// The first n lanes; the others are 0.
template <class T> SSD_INLINE f32x16 load_n(const T* p, int n) {
  if (n >= 16) return load(p);
  T t[16] = {};
  std::memcpy(t, p, n * sizeof(T));
  return load(t);
}
template <class T> SSD_INLINE void store_n(T* p, f32x16 a, int n) {
  if (n >= 16) return store(p, a);
  T t[16];
  store(t, a);
  std::memcpy(p, t, n * sizeof(T));
}

// e^x, error below 2 ulp; 0 below -87, inf above 88, NaN stays NaN.
// x = n ln 2 + r with |r| <= ln 2 / 2, e^r by a polynomial of degree 7.
SSD_INLINE f32x16 exp(f32x16 x) {
  const f32x16 magic = set1(12582912.f);  // 1.5 * 2^23: adding it rounds to an integer
  f32x16 c = min(set1(88.f), max(set1(-87.f), x));
  f32x16 n = fma(c, set1(1.44269504f), magic);
  f32x16 k = n - magic;
  f32x16 r = fma(k, set1(-0.693145752f), c);
  r = fma(k, set1(-1.42860677e-6f), r);
  f32x16 p = set1(1.98412698e-4f);
  p = fma(p, r, set1(1.38888889e-3f));
  p = fma(p, r, set1(8.33333333e-3f));
  p = fma(p, r, set1(4.16666667e-2f));
  p = fma(p, r, set1(1.66666667e-1f));
  p = fma(p, r, set1(0.5f));
  p = fma(p, r, set1(1.f));
  p = fma(p, r, set1(1.f));
  p = p * exp2_int(n);
  p = unless_less(x, set1(-87.f), p);
  return max(where_less(set1(88.f), x, set1(INFINITY)), p);
}

SSD_INLINE f32x16 silu(f32x16 x) { return x / (set1(1.f) + exp(zero() - x)); }

}  // namespace SSD_ISA
}  // namespace ssd
