// Packed linear: y = x W^T (+ bias) (+ residual), or silu(gate) * up of interleaved panels.
//
// Every output element is one fixed sequence of operations (dot.h), whatever the number of
// rows, threads or lanes. int8: exact integer dot products over groups of
// 64, one fma a group. A panel is read from memory once for all rows.
#pragma once
#include "dot.h"
#include "kernels.h"
#include "ssd/packed.h"

namespace ssd {
namespace SSD_ISA {

constexpr int64_t kAhead = 8192;  // bytes under way from memory

SSD_INLINE int32_t load_dword(const int8_t* p) {
  int32_t v;
  std::memcpy(&v, p, 4);
  return v;
}

// Integer dot products of 4 inputs for 16 outputs.
#if SSD_AVX512
struct i32x16 { __m512i v; };
SSD_INLINE i32x16 izero() { return {_mm512_setzero_si512()}; }
SSD_INLINE f32x16 to_f32(i32x16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
struct Quad { __m512i w; };
// w + 128 is unsigned, as vpdpbusd wants it; the sum begins at -128 sum(x), which makes up for it (exact).
SSD_INLINE i32x16 first_sum(int32_t base) { return {_mm512_set1_epi32(base)}; }
SSD_INLINE Quad load_quad(const int8_t* p) {
  return {_mm512_xor_si512(_mm512_loadu_si512(p), _mm512_set1_epi8(-128))};
}
SSD_INLINE i32x16 dot4(const Quad& q, int32_t x, i32x16 acc) {
  return {_mm512_dpbusd_epi32(acc.v, q.w, _mm512_set1_epi32(x))};
}
#elif SSD_AVX2
struct i32x16 { __m256i lo, hi; };
SSD_INLINE i32x16 izero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
SSD_INLINE f32x16 to_f32(i32x16 a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
// |w| times x with the sign of w: pairs stay below 2^15, since both are within +-127 (exact).
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
#endif

template <int RT, int NP>
SSD_INLINE void dot_int8(const int8_t* x, const RowGroup* xs, int64_t n_groups, const int8_t* w, float* y, int64_t ldy,
                         Ahead ahead) {
  const int64_t panel = n_groups * kGroupBytes, ldx = n_groups * kGroup;
  f32x16 acc[RT * NP];
  unroll<RT * NP>(SSD_EACH(i) { acc[i] = zero(); });
  for (int64_t g = 0; g < n_groups; ++g) {
    const int8_t *wg = w + g * kGroupBytes, *xg = x + g * kGroup;
    i32x16 sum[RT * NP];
    unroll<RT>(SSD_EACH(r) {
      unroll<NP>(SSD_EACH(p) { sum[r * NP + p] = first_sum(xs[r * n_groups + g].base); });
    });
    for (int j = 0; j < kGroup / 4; ++j, ahead.next()) {
      unroll<NP>(SSD_EACH(p) { __builtin_prefetch(ahead.p + p * panel); });
      Quad q[NP];
      unroll<NP>(SSD_EACH(p) { q[p] = load_quad(wg + p * panel + 64 * j); });
      unroll<RT>(SSD_EACH(r) {
        const int32_t v = load_dword(xg + r * ldx + 4 * j);
        unroll<NP>(SSD_EACH(p) { sum[r * NP + p] = dot4(q[p], v, sum[r * NP + p]); });
      });
    }
    if (g % 2) {  // two groups are 33 lines
      unroll<NP>(SSD_EACH(p) { __builtin_prefetch(ahead.p + p * panel); });
      ahead.next();
    }
    unroll<NP>(SSD_EACH(p) {
      const f32x16 scale = load((const fp16*)(wg + p * panel + kGroup * kPanel));
      unroll<RT>(SSD_EACH(r) {
        acc[r * NP + p] = fma(to_f32(sum[r * NP + p]), scale * set1(xs[r * n_groups + g].scale), acc[r * NP + p]);
      });
    });
  }
  unroll<RT>(SSD_EACH(r) { unroll<NP>(SSD_EACH(p) { store(y + r * ldy + p * kPanel, acc[r * NP + p]); }); });
}

// Rows to int8 with one scale per 64 inputs (largest magnitude / 127), to nearest even.
inline void quantise(const float* x, int64_t rows, int64_t k, int8_t* q, RowGroup* out, Team& team) {
  const int64_t n_groups = groups(k);
  int64_t i0, i1;
  team.share(rows * n_groups, i0, i1);
  for (int64_t i = i0; i < i1; ++i) {
    const int64_t r = i / n_groups, k0 = i % n_groups * kGroup;
    const int n = int(std::min<int64_t>(kGroup, k - k0));
    f32x16 v[4], top = zero();
    for (int j = 0; j < 4; ++j) {
      v[j] = n > 16 * j ? load_n(x + r * k + k0 + 16 * j, std::min(16, n - 16 * j)) : zero();
      top = max(top, max(v[j], zero() - v[j]));
    }
    const float amax = reduce_max(top);
    int32_t sum = 0;
    const f32x16 inv = set1(amax > 0 ? 127.f / amax : 0.f), magic = set1(12582912.f);
    for (int j = 0; j < 4; ++j) {
      uint32_t t[16];
      store((float*)t, fma(v[j], inv, magic));  // the integer, in the low bits
      for (int l = 0; l < 16; ++l) sum += q[i * kGroup + 16 * j + l] = int8_t(t[l]);
    }
    out[i] = {amax / 127.f, -128 * sum};
  }
}

// Products of NP panels from p on with RT rows from r on, into y [RT][NP][16].
template <class T, int RT, int NP>
SSD_INLINE void tile(const LinearArgs& a, int64_t r, int64_t p, float* y, int64_t ldy, Ahead ahead) {
  if constexpr (std::is_same_v<T, int8_t>) {
    const int64_t g = groups(a.k);
    dot_int8<RT, NP>(a.xq + r * g * kGroup, a.xs + r * g, g, (const int8_t*)a.w + p * g * kGroupBytes, y, ldy, ahead);
  } else {
    dot<T, RT, NP, true>(a.x + r * a.k, a.k, (const T*)a.w + p * a.k * kPanel, a.k * kPanel, a.k, y, ldy, ahead);
  }
}

// Bias, SwiGLU or residual for `rows` rows from r on and np panels from p on.
inline void epilogue(const LinearArgs& a, int64_t r, int rows, int64_t p, int np, const float* y, int64_t ldy) {
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < np; ++j) {
      f32x16 v = load(y + i * ldy + j * kPanel);
      int64_t n0 = (p + j) * kPanel, ld = a.n;
      if (a.bias) v = v + load_n(a.bias + n0, int(std::min<int64_t>(kPanel, a.n - n0)));
      if (a.swiglu) {  // panels 2 j and 2 j + 1: gate and up
        f32x16 up = load(y + i * ldy + ++j * kPanel);
        if (a.bias) up = up + load(a.bias + n0 + kPanel);
        v = silu(v) * up;
        n0 /= 2, ld /= 2;
      }
      const int n = int(std::min<int64_t>(kPanel, ld - n0));
      if (a.residual) v = v + load_n(a.residual + (r + i) * ld + n0, n);
      store_n(a.y + (r + i) * ld + n0, v, n);
    }
}

// Panels taken together with so many rows.
template <class T> constexpr int panels_of(int rows) {
  if (!std::is_same_v<T, int8_t>) return panels_with(rows);
#if SSD_AVX512
  return rows <= 3 ? 4 : rows <= 6 ? 2 : 1;  // an integer sum beside each accumulator
#else
  return 1;
#endif
}

template <class T> inline void linear_typed(const LinearArgs& a, Team& team) {
  constexpr bool kInt8 = std::is_same_v<T, int8_t>;
  const int64_t step = a.swiglu ? 2 : 1, tiles = (a.rows + kRowTile - 1) / kRowTile;
  int64_t b0, b1;
  team.share(panels(a.n) / step, b0, b1);
  const int64_t panel = kInt8 ? groups(a.k) * kGroupBytes : a.k * kPanel * int64_t(sizeof(T));  // bytes
  const int64_t chunk = 64, steps = panel / chunk;                                             // bytes a step
  const int64_t most = std::max<int64_t>(step, panels_of<T>(int((a.rows + tiles - 1) / tiles)));
  float y[kRowTile * 4 * kPanel];
  for (int64_t p = b0 * step, end = b1 * step; p < end;) {
    const int np = int(std::min<int64_t>(end - p, most));
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t r = a.rows * t / tiles, ldy = np * kPanel;
      const int rows = int(a.rows * (t + 1) / tiles - r);
      // one tile reads on in its panels, then in the next; several fetch the next together: memory is always busy
      const char* here = (const char*)a.w + p * panel;
      const int64_t far = std::min<int64_t>(kAhead / np / 64, steps);
      with_rows(rows, SSD_EACH(rt) {
        constexpr int NP = panels_of<T>(rt);
        auto ahead = [&](int n) {
          return tiles == 1 ? Ahead{here + far * chunk, chunk, steps - far, (n - 1) * panel}
                            : Ahead{here + n * panel + steps * t / tiles * chunk, chunk / tiles};
        };
        int j = 0;
        auto some = [&](auto n) __attribute__((always_inline)) {
          if constexpr (n <= NP)
            for (; j + n <= np; j += n, here += n * panel) tile<T, rt, n>(a, r, p + j, y + j * kPanel, ldy, ahead(n));
        };
        some(std::integral_constant<int, 4>{}), some(std::integral_constant<int, 2>{}), some(std::integral_constant<int, 1>{});
      });
      epilogue(a, r, rows, p, np, y, ldy);
    }
    p += np;
  }
}

inline void linear(const LinearArgs& a, Team& team) {
  if (a.rows == 0) return;
  if (a.format == Format::fp32) return linear_typed<float>(a, team);
  if (a.format == Format::bf16) return linear_typed<bf16>(a, team);
  quantise(a.x, a.rows, a.k, a.xq, a.xs, team);
  team.barrier();
  linear_typed<int8_t>(a, team);
}

}  // namespace SSD_ISA
}  // namespace ssd
