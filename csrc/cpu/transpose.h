// Transposes sixteen keys of D elements, wherever they lie, to one panel [D][16] of fp32.
#pragma once
#include "simd/simd.h"

namespace ssd {
namespace SSD_ISA {

#if SSD_AVX2
SSD_INLINE __m256 load8(const float* p) { return _mm256_loadu_ps(p); }
SSD_INLINE __m256 load8(const fp16* p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }
SSD_INLINE __m256 load8(const bf16* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
}
// Eight rows of eight dwords to eight columns.
SSD_INLINE void transpose8x8(__m256 (&r)[8]) {
  __m256 t[8];
  unroll<4>(SSD_EACH(i) {
    t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  });
  unroll<2>(SSD_EACH(i) {
    unroll<2>(SSD_EACH(h) {
      r[4 * i + 2 * h] = _mm256_shuffle_ps(t[4 * i + h], t[4 * i + h + 2], 0x44);
      r[4 * i + 2 * h + 1] = _mm256_shuffle_ps(t[4 * i + h], t[4 * i + h + 2], 0xee);
    });
  });
  unroll<4>(SSD_EACH(c) {
    t[c] = _mm256_permute2f128_ps(r[c], r[c + 4], 0x20);
    t[c + 4] = _mm256_permute2f128_ps(r[c], r[c + 4], 0x31);
  });
  unroll<8>(SSD_EACH(c) { r[c] = t[c]; });
}
// Elements j to j + 15 of eight keys, into rows of 16 floats.
template <class T> SSD_INLINE void transpose8(const T* const* at, int64_t j, float* out) {
  unroll<2>(SSD_EACH(h) {
    __m256 r[8];
    unroll<8>(SSD_EACH(i) { r[i] = load8(at[i] + j + 8 * h); });
    transpose8x8(r);
    unroll<8>(SSD_EACH(c) { _mm256_storeu_ps(out + 16 * (8 * h + c), r[c]); });
  });
}
SSD_INLINE void transpose8(const bf16* const* at, int64_t j, float* out) {  // as pairs, half the shuffles
  __m256 r[8];
  unroll<8>(SSD_EACH(i) { r[i] = _mm256_loadu_ps((const float*)(at[i] + j)); });
  transpose8x8(r);
  unroll<8>(SSD_EACH(c) {
    const __m256i w = _mm256_castps_si256(r[c]);
    _mm256_storeu_ps(out + 32 * c, _mm256_castsi256_ps(_mm256_slli_epi32(w, 16)));
    _mm256_storeu_ps(out + 32 * c + 16, _mm256_castsi256_ps(_mm256_and_si256(w, _mm256_set1_epi32(0xffff0000))));
  });
}
#endif

#if SSD_AVX512
// Sixteen rows of sixteen dwords to sixteen columns.
SSD_INLINE void transpose16x16(__m512i (&r)[16]) {
  __m512i t[16];
  unroll<8>(SSD_EACH(i) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  });
  unroll<4>(SSD_EACH(i) {  // r[4 i + c]: columns c, 4 + c, 8 + c, 12 + c of rows 4 i to 4 i + 3
    unroll<2>(SSD_EACH(h) {
      r[4 * i + 2 * h] = _mm512_unpacklo_epi64(t[4 * i + h], t[4 * i + h + 2]);
      r[4 * i + 2 * h + 1] = _mm512_unpackhi_epi64(t[4 * i + h], t[4 * i + h + 2]);
    });
  });
  unroll<4>(SSD_EACH(c) {
    t[c] = _mm512_shuffle_i32x4(r[c], r[4 + c], 0x88);
    t[4 + c] = _mm512_shuffle_i32x4(r[c], r[4 + c], 0xdd);
    t[8 + c] = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0x88);
    t[12 + c] = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0xdd);
  });
  unroll<4>(SSD_EACH(c) {
    r[c] = _mm512_shuffle_i32x4(t[c], t[8 + c], 0x88);
    r[8 + c] = _mm512_shuffle_i32x4(t[c], t[8 + c], 0xdd);
    r[4 + c] = _mm512_shuffle_i32x4(t[4 + c], t[12 + c], 0x88);
    r[12 + c] = _mm512_shuffle_i32x4(t[4 + c], t[12 + c], 0xdd);
  });
}
#endif

// Transposes keys at[0..n), at most 16; the columns of missing keys are zero. d is a multiple of 16. Calls each.next()
// once per line of keys.
template <class T, class Each> inline void transpose16(const T* const* at, int n, int d, float* out, Each&& each) {
  alignas(64) static const float nothing[256] = {};
  const T* padded[16];
  if (n < 16) {
    for (int i = 0; i < 16; ++i) padded[i] = i < n ? at[i] : (const T*)nothing;
    at = padded;
  }
  int j = 0;
#if SSD_AVX512
  if constexpr (std::is_same_v<T, bf16>)
    for (; j + 32 <= d; j += 32) {  // as pairs, half the shuffles
      __m512i r[16];
      unroll<16>(SSD_EACH(i) { r[i] = _mm512_loadu_si512(at[i] + j); });
      transpose16x16(r);
      unroll<16>(SSD_EACH(c) {
        _mm512_storeu_si512(out + 16 * (j + 2 * c), _mm512_slli_epi32(r[c], 16));
        _mm512_storeu_si512(out + 16 * (j + 2 * c + 1), _mm512_and_si512(r[c], _mm512_set1_epi32(0xffff0000)));
        each.next();
      });
    }
  for (; j < d; j += 16) {
    __m512i r[16];
    unroll<16>(SSD_EACH(i) { r[i] = _mm512_castps_si512(load(at[i] + j).v); });
    transpose16x16(r);
    unroll<16>(SSD_EACH(c) {
      _mm512_storeu_si512(out + 16 * (j + c), r[c]);
      if constexpr (c * sizeof(T) % 4 == 0) each.next();
    });
  }
#endif
  for (; j < d; j += 16) {
#if SSD_AVX2
    transpose8(at, j, out + 16 * j);
    transpose8(at + 8, j, out + 16 * j + 8);
#else
    for (int c = 0; c < 16; ++c)
      for (int i = 0; i < 16; ++i) out[16 * (j + c) + i] = to_float(at[i][j + c]);
#endif
    for (int i = 0; i < 4 * int(sizeof(T)); ++i) each.next();
  }
}

}  // namespace SSD_ISA
}  // namespace ssd
