// Packed linear: y = x W^T (+ bias) (+ residual), or silu(gate) * up of interleaved panels.
//
// Every output element is one fixed sequence of operations (dot.h, dot_int.h), whatever the number of rows, threads or
// lanes. A panel is read from memory once for all rows.
#pragma once
#include "dot_int.h"

namespace ssd {
namespace SSD_ISA {

constexpr int64_t kAhead = 8192;  // bytes in flight from memory

// Products of NP panels from p on with RT rows from r on, into y [RT][NP][16]. It is not inlined: one function with all
// of these instances would take a compiler minutes.
template <Format F, int RT, int NP>
__attribute__((noinline)) void tile(const LinearArgs& a, int64_t r, int64_t p, float* y, int64_t ldy, Ahead ahead) {
  if constexpr (quantised(F)) {
    const int64_t g = groups(a.k, F);
    dot_int<F, RT, NP>(a.xq + r * padded(a.k), a.xs + r * g, a.k, (const int8_t*)a.w + p * g * group_bytes(F), y, ldy,
                       ahead);
  } else {
    using T = std::conditional_t<F == Format::fp32, float, bf16>;
    dot<T, RT, NP, true>(a.x + r * a.k, a.k, (const T*)a.w + p * a.k * kPanel, a.k * kPanel, a.k, y, ldy, ahead);
  }
}

// Applies bias, SwiGLU or residual to `rows` rows from r on and np panels from p on.
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

// How many panels to take together for a number of rows.
template <Format F> constexpr int panels_of(int rows) {
  if (!quantised(F)) return panels_with(rows);
#if SSD_AVX512
  return rows <= 3 ? 4 : 2;  // an integer sum beside each accumulator
#else
  return 1;
#endif
}
template <Format F> constexpr int kRowsOf = quantised(F) ? 6 : kRowTile;

// All rows of the panels from p to end, `most` panels together; a panel has so many bytes.
template <Format F> void linear_panels(const LinearArgs& a, int64_t panel, int64_t most, int64_t p, int64_t end) {
  const int64_t tiles = (a.rows + kRowsOf<F> - 1) / kRowsOf<F>;
  const int64_t chunk = 64, steps = panel / chunk;  // bytes per step
  float y[kRowTile * 4 * kPanel];
  while (p < end) {
    const int np = int(std::min<int64_t>(end - p, most));
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t r = a.rows * t / tiles, ldy = np * kPanel;
      const int rows = int(a.rows * (t + 1) / tiles - r);
      // A single tile prefetches in its own panels, then in the next ones; several tiles share the prefetch of the next
      // panels. So memory is always busy.
      const char* here = (const char*)a.w + p * panel;
      const int64_t far = std::min<int64_t>(kAhead / np / 64, steps);
      with_rows<kRowsOf<F>>(
          rows, SSD_EACH(rt) {
            constexpr int NP = panels_of<F>(rt);
            auto ahead = [&](int n) {
              return tiles == 1 ? Ahead{here + far * chunk, chunk, steps - far, (n - 1) * panel}
                                : Ahead{here + n * panel + steps * t / tiles * chunk, chunk / tiles};
            };
            int j = 0;
            auto some = [&](auto n) __attribute__((always_inline)) {
              if constexpr (n <= NP)
                for (; j + n <= np; j += n, here += n * panel)
                  tile<F, rt, n>(a, r, p + j, y + j * kPanel, ldy, ahead(n));
            };
            some(std::integral_constant<int, 4>{}), some(std::integral_constant<int, 2>{}),
                some(std::integral_constant<int, 1>{});
          });
      epilogue(a, r, rows, p, np, y, ldy);
    }
    p += np;
  }
}

template <Format F> inline void linear_in(const LinearArgs& a, Team& team) {
  if constexpr (quantised(F)) quantise<F>(a, team);
  const int64_t step = a.swiglu ? 2 : 1, tiles = (a.rows + kRowsOf<F> - 1) / kRowsOf<F>;
  const int64_t panel =
      quantised(F) ? groups(a.k, F) * group_bytes(F) : a.k * kPanel * (F == Format::fp32 ? 4 : 2);  // bytes
  const int64_t most = std::max<int64_t>(step, panels_of<F>(int((a.rows + tiles - 1) / tiles)));
  team.share(panels(a.n) / step, most * items_of(most * panel) / step,
             [&](int64_t first, int64_t last) { linear_panels<F>(a, panel, most, first * step, last * step); });
}

inline void linear(const LinearArgs& a, Team& team) {
  if (a.rows == 0) return;
  switch (a.format) {
    case Format::fp32: return linear_in<Format::fp32>(a, team);
    case Format::bf16: return linear_in<Format::bf16>(a, team);
    case Format::int8: return linear_in<Format::int8>(a, team);
    case Format::q8_0: return linear_in<Format::q8_0>(a, team);
    case Format::q4_0: return linear_in<Format::q4_0>(a, team);
    case Format::q4_1: return linear_in<Format::q4_1>(a, team);
  }
}

}  // namespace SSD_ISA
}  // namespace ssd
