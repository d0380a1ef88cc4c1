// Inner products of quantised weights with rows in int8: integer sums over a group of inputs, which are exact, then fma
// with the group's scales, group by group. Formats: ssd/packed.h.
#pragma once
#include "dot.h"
#include "kernels.h"
#include "ssd/packed.h"

namespace ssd {
namespace SSD_ISA {

SSD_INLINE int32_t load_dword(const int8_t* p) {
  int32_t v;
  std::memcpy(&v, p, 4);
  return v;
}

// Integer dot products of 4 inputs for 16 outputs: weights are signed bytes (Quad) or four-bit numbers (Nibbles), whose
// sums begin with nibble_sum(base) and end with total(sum, base). All of it is exact.
#if SSD_AVX512
struct i32x16 { __m512i v; };
SSD_INLINE i32x16 izero() { return {_mm512_setzero_si512()}; }
SSD_INLINE f32x16 to_f32(i32x16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
struct Quad { __m512i w; };
// vpdpbusd takes unsigned bytes, so it gets w + 128; the sum begins at -128 sum(x) to make up for that, exactly.
SSD_INLINE i32x16 first_sum(int32_t base) { return {_mm512_set1_epi32(base)}; }
SSD_INLINE Quad load_quad(const int8_t* p) { return {_mm512_xor_si512(_mm512_loadu_si512(p), _mm512_set1_epi8(-128))}; }
SSD_INLINE i32x16 dot4(const Quad& q, int32_t x, i32x16 acc) {
  return {_mm512_dpbusd_epi32(acc.v, q.w, _mm512_set1_epi32(x))};
}
struct Nibbles { Quad lo, hi; };
typedef i32x16 NibbleSum;
SSD_INLINE Nibbles load_nibbles(const int8_t* p) {
  const __m512i w = _mm512_loadu_si512(p), low = _mm512_set1_epi8(15);
  return {{_mm512_and_si512(w, low)}, {_mm512_and_si512(_mm512_srli_epi16(w, 4), low)}};
}
SSD_INLINE NibbleSum nibble_sum(int32_t base) { return {_mm512_set1_epi32(base)}; }
SSD_INLINE i32x16 total(NibbleSum sum, int32_t) { return sum; }
SSD_INLINE NibbleSum dot8(const Nibbles& q, int32_t x_lo, int32_t x_hi, NibbleSum acc) {
  return dot4(q.hi, x_hi, dot4(q.lo, x_lo, acc));
}
#elif SSD_AVX2
struct i32x16 { __m256i lo, hi; };
SSD_INLINE i32x16 izero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
SSD_INLINE f32x16 to_f32(i32x16 a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
// |w| times x with the sign of w: sums of pairs stay below 2^15, since both factors are within +-127, so they are
// exact.
struct Quad { __m256i lo, hi, alo, ahi; };
SSD_INLINE i32x16 first_sum(int32_t) { return izero(); }
SSD_INLINE Quad load_quad(const int8_t* p) {
  Quad q;
  q.lo = _mm256_loadu_si256((const __m256i*)p), q.hi = _mm256_loadu_si256((const __m256i*)p + 1);
  q.alo = _mm256_abs_epi8(q.lo), q.ahi = _mm256_abs_epi8(q.hi);
  return q;
}
SSD_INLINE i32x16 dot4(const Quad& q, int32_t x, i32x16 acc) {
  const __m256i one = _mm256_set1_epi16(1), v = _mm256_set1_epi32(x);
  __m256i lo = _mm256_maddubs_epi16(q.alo, _mm256_sign_epi8(v, q.lo));
  __m256i hi = _mm256_maddubs_epi16(q.ahi, _mm256_sign_epi8(v, q.hi));
  return {_mm256_add_epi32(acc.lo, _mm256_madd_epi16(lo, one)), _mm256_add_epi32(acc.hi, _mm256_madd_epi16(hi, one))};
}
struct Nibbles { __m256i w[2][2]; };   // lower and upper half of the outputs; low and high nibbles
struct NibbleSum { __m256i lo, hi; };  // 16 bits are enough: a lane sums at most 16 products of 15 and 127
SSD_INLINE Nibbles load_nibbles(const int8_t* p) {
  const __m256i a = _mm256_loadu_si256((const __m256i*)p), b = _mm256_loadu_si256((const __m256i*)p + 1);
  const __m256i low = _mm256_set1_epi8(15);
  return {{{_mm256_and_si256(a, low), _mm256_and_si256(_mm256_srli_epi16(a, 4), low)},
           {_mm256_and_si256(b, low), _mm256_and_si256(_mm256_srli_epi16(b, 4), low)}}};
}
SSD_INLINE NibbleSum nibble_sum(int32_t) { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
SSD_INLINE i32x16 total(NibbleSum sum, int32_t base) {
  const __m256i one = _mm256_set1_epi16(1), b = _mm256_set1_epi32(base);
  return {_mm256_add_epi32(_mm256_madd_epi16(sum.lo, one), b), _mm256_add_epi32(_mm256_madd_epi16(sum.hi, one), b)};
}
SSD_INLINE NibbleSum dot8(const Nibbles& q, int32_t x_lo, int32_t x_hi, NibbleSum acc) {
  const __m256i x[2] = {_mm256_set1_epi32(x_lo), _mm256_set1_epi32(x_hi)};
  for (int i = 0; i < 2; ++i) {
    acc.lo = _mm256_add_epi16(acc.lo, _mm256_maddubs_epi16(q.w[0][i], x[i]));
    acc.hi = _mm256_add_epi16(acc.hi, _mm256_maddubs_epi16(q.w[1][i], x[i]));
  }
  return acc;
}
#else
struct i32x16 { int32_t v[16]; };
SSD_INLINE i32x16 izero() { return {}; }
SSD_INLINE f32x16 to_f32(i32x16 a) {
  f32x16 r;
  for (int i = 0; i < 16; ++i) r.v[i] = float(a.v[i]);
  return r;
}
struct Quad { const int8_t* w; };
SSD_INLINE i32x16 first_sum(int32_t) { return izero(); }
SSD_INLINE Quad load_quad(const int8_t* p) { return {p}; }
SSD_INLINE i32x16 dot4(const Quad& q, int32_t x, i32x16 acc) {
  int8_t b[4];
  std::memcpy(b, &x, 4);
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 4; ++j) acc.v[i] += int(q.w[4 * i + j]) * int(b[j]);
  return acc;
}
struct Nibbles { int8_t lo[64], hi[64]; };
typedef i32x16 NibbleSum;
SSD_INLINE Nibbles load_nibbles(const int8_t* p) {
  Nibbles q;
  for (int i = 0; i < 64; ++i) q.lo[i] = p[i] & 15, q.hi[i] = uint8_t(p[i]) >> 4;
  return q;
}
SSD_INLINE NibbleSum nibble_sum(int32_t base) {
  NibbleSum sum;
  for (int32_t& v : sum.v) v = base;
  return sum;
}
SSD_INLINE i32x16 total(NibbleSum sum, int32_t) { return sum; }
SSD_INLINE NibbleSum dot8(const Nibbles& q, int32_t x_lo, int32_t x_hi, NibbleSum acc) {
  return dot4({q.hi}, x_hi, dot4({q.lo}, x_lo, acc));
}
#endif

// y = x W^T of RT rows and NP panels; x int8 [RT][padded(k)], xs [RT][groups].
template <Format F, int RT, int NP>
SSD_INLINE void dot_int(const int8_t* x, const RowGroup* xs, int64_t k, const int8_t* w, float* y, int64_t ldy,
                        Ahead ahead) {
  constexpr int kBytes = group_bytes(F), kLines = quant_bytes(F) / 64, kMore = kBytes / 32 - 2 * kLines;
  const int64_t n_groups = groups(k, F), panel = n_groups * kBytes, ldx = padded(k);
  auto fetch = [&]() __attribute__((always_inline)) {
    unroll<NP>(SSD_EACH(p) { __builtin_prefetch(ahead.p + p * panel); });
    ahead.next();
  };
  f32x16 acc[RT * NP];
  unroll<RT * NP>(SSD_EACH(i) { acc[i] = zero(); });
  for (int64_t g = 0; g < n_groups; ++g) {
    const int8_t *wg = w + g * kBytes, *xg = x + g * group_of(F);
    const RowGroup* row = xs + g;
    i32x16 sum[RT * NP];
    if constexpr (four_bits(F)) {
      NibbleSum part[RT * NP];
      unroll<RT>(SSD_EACH(r) { unroll<NP>(SSD_EACH(p) { part[r * NP + p] = nibble_sum(row[r * n_groups].base); }); });
      for (int j = 0; j < kLines; ++j) {
        fetch();
        unroll<NP>(SSD_EACH(p) {
          const Nibbles q = load_nibbles(wg + p * panel + 64 * j);
          unroll<RT>(SSD_EACH(r) {
            const int8_t* v = xg + r * ldx + 4 * j;
            part[r * NP + p] = dot8(q, load_dword(v), load_dword(v + 16), part[r * NP + p]);
          });
        });
      }
      unroll<RT>(SSD_EACH(r) {
        unroll<NP>(SSD_EACH(p) { sum[r * NP + p] = total(part[r * NP + p], row[r * n_groups].base); });
      });
    } else {
      unroll<RT>(SSD_EACH(r) { unroll<NP>(SSD_EACH(p) { sum[r * NP + p] = first_sum(row[r * n_groups].base); }); });
      for (int j = 0; j < kLines; ++j) {
        fetch();
        Quad q[NP];
        unroll<NP>(SSD_EACH(p) { q[p] = load_quad(wg + p * panel + 64 * j); });
        unroll<RT>(SSD_EACH(r) {
          const int32_t v = load_dword(xg + r * ldx + 4 * j);
          unroll<NP>(SSD_EACH(p) { sum[r * NP + p] = dot4(q[p], v, sum[r * NP + p]); });
        });
      }
    }
    if (kMore == 2 || g % 2) fetch();  // the scales: kMore lines for two groups
    unroll<NP>(SSD_EACH(p) {
      const fp16* scales = (const fp16*)(wg + p * panel + quant_bytes(F));
      const f32x16 d = load(scales);
      unroll<RT>(SSD_EACH(r) {
        f32x16& a = acc[r * NP + p];
        a = fma(to_f32(sum[r * NP + p]), d * set1(row[r * n_groups].scale), a);
        if constexpr (F == Format::q4_1) a = fma(load(scales + kPanel), set1(row[r * n_groups].moment), a);
      });
    });
  }
  unroll<RT>(SSD_EACH(r) { unroll<NP>(SSD_EACH(p) { store(y + r * ldy + p * kPanel, acc[r * NP + p]); }); });
}

// Rows to int8 with one scale for the inputs of a group (largest magnitude / 127), to nearest even.
template <Format F> void quantise(const LinearArgs& a, Team& team) {
  constexpr int kGroup = group_of(F), kVectors = kGroup / 16;
  constexpr int kZero = F == Format::q4_0 ? 8 : F == Format::q4_1 ? 0 : 128;  // what sums begin with makes up for
  const int64_t n_groups = groups(a.k, F);
  team.each(a.rows * n_groups, items_of(5 * kGroup), [&](int64_t i) {
    const int64_t r = i / n_groups, k0 = i % n_groups * kGroup;
    const int n = int(std::min<int64_t>(kGroup, a.k - k0));
    f32x16 v[kVectors], top = zero();
    for (int j = 0; j < kVectors; ++j) {
      v[j] = n > 16 * j ? load_n(a.x + r * a.k + k0 + 16 * j, std::min(16, n - 16 * j)) : zero();
      top = max(top, max(v[j], zero() - v[j]));
    }
    const float amax = reduce_max(top), scale = amax / 127.f;
    int8_t* q = a.xq + r * padded(a.k) + k0;
    int32_t sum = 0;
    const f32x16 inv = set1(amax > 0 ? 127.f / amax : 0.f), magic = set1(12582912.f);
    for (int j = 0; j < kVectors; ++j) {
      uint32_t t[16];
      store((float*)t, fma(v[j], inv, magic));  // the integer, in the low bits
      for (int l = 0; l < 16; ++l) sum += q[16 * j + l] = int8_t(t[l]);
    }
    a.xs[i] = {scale, scale * float(sum), -kZero * sum};
  });
}

}  // namespace SSD_ISA
}  // namespace ssd
