// The inner product that every matrix product uses: RT rows by NP panels of 16 columns.
//
// y[r][16 p + i] is a chain of fused multiply-adds over k, ascending. Long sums over weights (kFetch) are chains of
// kChain that are added in order, which keeps the fp32 error as small as that of other libraries. The operations behind
// an element do not depend on RT, NP or the other rows.
#pragma once
#include "simd/simd.h"

namespace ssd {
namespace SSD_ISA {

#if SSD_AVX512
constexpr int kRowTile = 12;
#else
constexpr int kRowTile = 6;  // 12 accumulators, 2 weights, 1 broadcast: 15 of 16 registers
#endif

// How many panels to take together for a number of rows: enough independent chains of fma, all in registers.
constexpr int panels_with(int rows) {
#if SSD_AVX512
  return rows <= 6 ? 4 : 2;  // 24 accumulators, 4 weights, 1 broadcast of 32 registers
#else
  return rows == 1 ? 4 : rows <= kRowTile / 2 ? 2 : 1;
#endif
}

constexpr int64_t kChain = 128;

SSD_INLINE f32x16 load_weight(const float* p) { return load(p); }
SSD_INLINE f32x16 load_weight(const bf16* p) { return load_pairs(p); }

// What to prefetch during a product: `step` bytes of each panel for every 64 that are read. After `left` steps the
// address jumps by `jump`, to where the next panels begin.
struct Ahead {
  const char* p;
  int64_t step, left = -1, jump = 0;
  SSD_INLINE void next() {
    p += step;
    if (--left == 0) p += jump;
  }
};

struct Nothing {
  SSD_INLINE void next() {}
};

template <class T, int RT, int NP, bool kFetch = false, class Each = Nothing>
SSD_INLINE void dot(const float* x, int64_t ldx, const T* w, int64_t panel, int64_t k_size, float* y, int64_t ldy,
                    Ahead ahead = {}, Each&& each = {}) {
  constexpr int per_line = 64 / (16 * sizeof(T));
  const float* xs[(RT + 2) / 3];  // rows 3 i, 3 i + 1 and 3 i + 2 from one register
  unroll<(RT + 2) / 3>(SSD_EACH(i) { xs[i] = x + 3 * i * ldx; });
  int64_t k = 0;
  do {
    const int64_t first = k, last = kFetch ? std::min(k_size, k + kChain) : k_size;
    f32x16 acc[RT * NP];
    unroll<RT * NP>(SSD_EACH(i) { acc[i] = zero(); });
    auto step = [&](int64_t j) __attribute__((always_inline)) {
      f32x16 v[NP];
      unroll<NP>(SSD_EACH(p) { v[p] = load_weight(w + p * panel + (k + j) * 16); });
      unroll<RT>(SSD_EACH(r) {
        const f32x16 b = set1(xs[r / 3][r % 3 * ldx + k + j]);
        unroll<NP>(SSD_EACH(p) { acc[r * NP + p] = fma(b, v[p], acc[r * NP + p]); });
      });
    };
    for (; k + per_line <= last; k += per_line) {
      if constexpr (kFetch) {
        unroll<NP>(SSD_EACH(p) { __builtin_prefetch(ahead.p + p * panel * sizeof(T)); });
        ahead.next();
      }
      each.next();
      unroll<per_line>(SSD_EACH(j) { step(j); });
    }
    for (; k < last; ++k) step(0);
    unroll<RT>(SSD_EACH(r) {
      unroll<NP>(SSD_EACH(p) {
        float* out = y + r * ldy + p * 16;
        store(out, first ? load(out) + acc[r * NP + p] : acc[r * NP + p]);
      });
    });
  } while (k < k_size);
}

// f(integral_constant<rows>) for 1 <= rows <= kRowTile.
template <int RT = kRowTile, class F> SSD_INLINE void with_rows(int rows, F&& f) {
  if constexpr (RT > 0) {
    if (rows == RT) return f(std::integral_constant<int, RT>{});
    with_rows<RT - 1>(rows, static_cast<F&&>(f));
  }
}

// y = x W for any number of rows and of fp32 panels that lie in the caches; calls each.next() once per line.
template <class Each = Nothing>
static __attribute__((noinline)) void product(const float* x, int64_t ldx, int rows, const float* w, int64_t panel,
                                              int n_panels, int64_t k, float* y, int64_t ldy, Each&& each = {}) {
  const int tiles = (rows + kRowTile - 1) / kRowTile;
  for (int t = 0; t < tiles; ++t) {
    const int r0 = rows * t / tiles, n = rows * (t + 1) / tiles - r0;
    with_rows(
        n, SSD_EACH(rt) {
          constexpr int NP = panels_with(rt);
          int p = 0;
          for (; p + NP <= n_panels; p += NP)
            dot<float, rt, NP>(x + r0 * ldx, ldx, w + p * panel, panel, k, y + r0 * ldy + 16 * p, ldy, {}, each);
          for (; NP > 1 && p < n_panels; ++p)
            dot<float, rt, 1>(x + r0 * ldx, ldx, w + p * panel, panel, k, y + r0 * ldy + 16 * p, ldy, {}, each);
        });
  }
}

}  // namespace SSD_ISA
}  // namespace ssd
