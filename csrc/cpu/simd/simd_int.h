// Sixteen 32-bit integer lanes, in the three forms of simd.h.
#pragma once
#include "simd.h"

namespace ssd {
namespace SSD_ISA {

#if SSD_AVX512

struct u32x16 { __m512i v; };
SSD_INLINE u32x16 set1_u32(uint32_t x) { return {_mm512_set1_epi32((int)x)}; }
SSD_INLINE u32x16 load_u32(const uint32_t* p) { return {_mm512_loadu_si512(p)}; }
SSD_INLINE void store_u32(uint32_t* p, u32x16 a) { _mm512_storeu_si512(p, a.v); }
SSD_INLINE u32x16 operator+(u32x16 a, u32x16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
SSD_INLINE u32x16 operator-(u32x16 a, u32x16 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
SSD_INLINE u32x16 operator^(u32x16 a, u32x16 b) { return {_mm512_xor_si512(a.v, b.v)}; }
template <int S> SSD_INLINE u32x16 shift_left(u32x16 a) { return {_mm512_slli_epi32(a.v, S)}; }
template <int S> SSD_INLINE u32x16 shift_right(u32x16 a) { return {_mm512_srli_epi32(a.v, S)}; }
template <int S> SSD_INLINE u32x16 shift_right_signed(u32x16 a) { return {_mm512_srai_epi32(a.v, S)}; }
// Upper and lower half of the 64-bit products with m.
SSD_INLINE void mul_wide(u32x16 a, uint32_t m, u32x16& hi, u32x16& lo) {
  __m512i c = _mm512_set1_epi32((int)m);
  __m512i even = _mm512_mul_epu32(a.v, c), odd = _mm512_mul_epu32(_mm512_srli_epi64(a.v, 32), c);
  hi = {_mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd)};
  lo = {_mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32))};
}
SSD_INLINE f32x16 to_float(u32x16 a) { return {_mm512_cvtepu32_ps(a.v)}; }         // to nearest even
SSD_INLINE f32x16 to_float_signed(u32x16 a) { return {_mm512_cvtepi32_ps(a.v)}; }  // to nearest even
SSD_INLINE f32x16 as_float(u32x16 a) { return {_mm512_castsi512_ps(a.v)}; }
SSD_INLINE u32x16 as_u32(f32x16 a) { return {_mm512_castps_si512(a.v)}; }
// Four vectors whose lane i holds element i of a column become the 64 elements row by row;
// lane i must hold row interleave[i].
constexpr int interleave[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
SSD_INLINE void transpose(u32x16 w[4]) {
  __m512i a = _mm512_unpacklo_epi32(w[0].v, w[1].v), b = _mm512_unpackhi_epi32(w[0].v, w[1].v);
  __m512i c = _mm512_unpacklo_epi32(w[2].v, w[3].v), d = _mm512_unpackhi_epi32(w[2].v, w[3].v);
  w[0].v = _mm512_unpacklo_epi64(a, c), w[1].v = _mm512_unpackhi_epi64(a, c);
  w[2].v = _mm512_unpacklo_epi64(b, d), w[3].v = _mm512_unpackhi_epi64(b, d);
}

#elif SSD_AVX2

struct u32x16 { __m256i lo, hi; };
#define SSD_BOTH(f, ...) {f(a.lo, ##__VA_ARGS__), f(a.hi, ##__VA_ARGS__)}
SSD_INLINE u32x16 set1_u32(uint32_t x) { return {_mm256_set1_epi32((int)x), _mm256_set1_epi32((int)x)}; }
SSD_INLINE u32x16 load_u32(const uint32_t* p) {
  return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)p + 1)};
}
SSD_INLINE void store_u32(uint32_t* p, u32x16 a) {
  _mm256_storeu_si256((__m256i*)p, a.lo), _mm256_storeu_si256((__m256i*)p + 1, a.hi);
}
SSD_INLINE u32x16 operator+(u32x16 a, u32x16 b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
SSD_INLINE u32x16 operator-(u32x16 a, u32x16 b) { return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)}; }
SSD_INLINE u32x16 operator^(u32x16 a, u32x16 b) { return {_mm256_xor_si256(a.lo, b.lo), _mm256_xor_si256(a.hi, b.hi)}; }
template <int S> SSD_INLINE u32x16 shift_left(u32x16 a) { return SSD_BOTH(_mm256_slli_epi32, S); }
template <int S> SSD_INLINE u32x16 shift_right(u32x16 a) { return SSD_BOTH(_mm256_srli_epi32, S); }
template <int S> SSD_INLINE u32x16 shift_right_signed(u32x16 a) { return SSD_BOTH(_mm256_srai_epi32, S); }
SSD_INLINE void mul_wide(__m256i a, __m256i c, __m256i& hi, __m256i& lo) {
  __m256i even = _mm256_mul_epu32(a, c), odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), c);
  hi = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
  lo = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
}
// Upper and lower half of the 64-bit products with m.
SSD_INLINE void mul_wide(u32x16 a, uint32_t m, u32x16& hi, u32x16& lo) {
  __m256i c = _mm256_set1_epi32((int)m);
  mul_wide(a.lo, c, hi.lo, lo.lo), mul_wide(a.hi, c, hi.hi, lo.hi);
}
SSD_INLINE __m256 to_float(__m256i a) {  // both halves are exact, so only the fma rounds
  __m256 high = _mm256_cvtepi32_ps(_mm256_srli_epi32(a, 16));
  __m256 low = _mm256_cvtepi32_ps(_mm256_and_si256(a, _mm256_set1_epi32(0xffff)));
  return _mm256_fmadd_ps(high, _mm256_set1_ps(65536.f), low);
}
SSD_INLINE f32x16 to_float(u32x16 a) { return SSD_BOTH(to_float); }                   // to nearest even
SSD_INLINE f32x16 to_float_signed(u32x16 a) { return SSD_BOTH(_mm256_cvtepi32_ps); }  // to nearest even
SSD_INLINE f32x16 as_float(u32x16 a) { return SSD_BOTH(_mm256_castsi256_ps); }
SSD_INLINE u32x16 as_u32(f32x16 a) { return SSD_BOTH(_mm256_castps_si256); }
// Four vectors whose lane i holds element i of a column become the 64 elements row by row;
// lane i must hold row interleave[i].
constexpr int interleave[16] = {0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15};
SSD_INLINE void transpose(__m256i w0, __m256i w1, __m256i w2, __m256i w3, u32x16& first, u32x16& second) {
  __m256i a = _mm256_unpacklo_epi32(w0, w1), b = _mm256_unpackhi_epi32(w0, w1);
  __m256i c = _mm256_unpacklo_epi32(w2, w3), d = _mm256_unpackhi_epi32(w2, w3);
  first = {_mm256_unpacklo_epi64(a, c), _mm256_unpackhi_epi64(a, c)};
  second = {_mm256_unpacklo_epi64(b, d), _mm256_unpackhi_epi64(b, d)};
}
SSD_INLINE void transpose(u32x16 w[4]) {
  u32x16 r[4];
  transpose(w[0].lo, w[1].lo, w[2].lo, w[3].lo, r[0], r[1]);
  transpose(w[0].hi, w[1].hi, w[2].hi, w[3].hi, r[2], r[3]);
  for (int i = 0; i < 4; ++i) w[i] = r[i];
}
#undef SSD_BOTH

#else

struct u32x16 { uint32_t v[16]; };
#define SSD_LANES(T, expr)                      \
  T r;                                          \
  for (int i = 0; i < 16; ++i) r.v[i] = (expr); \
  return r
SSD_INLINE u32x16 set1_u32(uint32_t x) { SSD_LANES(u32x16, x); }
SSD_INLINE u32x16 load_u32(const uint32_t* p) { SSD_LANES(u32x16, p[i]); }
SSD_INLINE void store_u32(uint32_t* p, u32x16 a) { std::memcpy(p, a.v, sizeof a.v); }
SSD_INLINE u32x16 operator+(u32x16 a, u32x16 b) { SSD_LANES(u32x16, a.v[i] + b.v[i]); }
SSD_INLINE u32x16 operator-(u32x16 a, u32x16 b) { SSD_LANES(u32x16, a.v[i] - b.v[i]); }
SSD_INLINE u32x16 operator^(u32x16 a, u32x16 b) { SSD_LANES(u32x16, a.v[i] ^ b.v[i]); }
template <int S> SSD_INLINE u32x16 shift_left(u32x16 a) { SSD_LANES(u32x16, a.v[i] << S); }
template <int S> SSD_INLINE u32x16 shift_right(u32x16 a) { SSD_LANES(u32x16, a.v[i] >> S); }
template <int S> SSD_INLINE u32x16 shift_right_signed(u32x16 a) { SSD_LANES(u32x16, uint32_t(int32_t(a.v[i]) >> S)); }
// Upper and lower half of the 64-bit products with m.
SSD_INLINE void mul_wide(u32x16 a, uint32_t m, u32x16& hi, u32x16& lo) {
  for (int i = 0; i < 16; ++i) {
    uint64_t p = uint64_t(a.v[i]) * m;
    hi.v[i] = uint32_t(p >> 32), lo.v[i] = uint32_t(p);
  }
}
SSD_INLINE f32x16 to_float(u32x16 a) { SSD_LANES(f32x16, float(a.v[i])); }                  // to nearest even
SSD_INLINE f32x16 to_float_signed(u32x16 a) { SSD_LANES(f32x16, float(int32_t(a.v[i]))); }  // to nearest even
SSD_INLINE f32x16 as_float(u32x16 a) { SSD_LANES(f32x16, from_bits(a.v[i])); }
SSD_INLINE u32x16 as_u32(f32x16 a) { SSD_LANES(u32x16, to_bits(a.v[i])); }
#undef SSD_LANES
// Four vectors whose lane i holds element i of a column become the 64 elements row by row;
// lane i must hold row interleave[i].
constexpr int interleave[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
SSD_INLINE void transpose(u32x16 w[4]) {
  u32x16 r[4];
  for (int i = 0; i < 64; ++i) r[i / 16].v[i % 16] = w[i % 4].v[i / 4];
  for (int i = 0; i < 4; ++i) w[i] = r[i];
}

#endif

}  // namespace SSD_ISA
}  // namespace ssd
