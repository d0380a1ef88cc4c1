// The online softmax of a tile of keys: scores from raw products, row maxima over all warps, weights.
#pragma once
#include "tile.cuh"

namespace ssd::gpu {

// A lane's place in the block: warp (wm, wn) of WM x WN, and in the accumulators of that warp rows `row` and row + 8 of
// the tile, columns `col` and col + 1 of every eight. h = 0, 1 stands for the two rows throughout.
template <class S>
struct Lane {
  int id, wm, wn, row, col;
  SSD_DEV Lane()
      : id(threadIdx.x % 32),
        wm(threadIdx.x / 32 / S::WN),
        wn(threadIdx.x / 32 % S::WN),
        row(wm * 16 + id / 4),
        col(id % 4 * 2) {}
};

template <class S>
using Scores = float[S::SP][2][4];  // of 16 rows and this warp's SP pairs of 8 keys

// Softmax state of a lane's two rows, and this warp's columns of the output.
template <class S>
struct State {
  float acc[S::DP][2][4];  // sums of weighted values
  float m[2];              // maxima so far
  float l[2];              // sums of weights: this lane's columns alone, until the span ends
};

// Scores in powers of two from raw products.
SSD_DEV float score(const AttentionArgs& a, float s) {
  const float x = __fmul_rn(s, a.scale);
  if (a.softcap == 0) return x;
  const float e = exp2_approx(x);  // tanh(y) = 1 - 2 / (1 + exp(2 y))
  return __fmul_rn(a.softcap, __fadd_rn(1.f, -__fmul_rn(2.f, __frcp_rn(__fadd_rn(1.f, e)))));
}

// Turns raw products into scores, -inf for the keys from `end` on, which a row does not see. The first key is at
// position j0. top: the maximum of each row over the keys of all warps, exchanged through sh_top [WN, M].
template <class S>
SSD_DEV void mask_scores(Scores<S>& s, float (&top)[2], const AttentionArgs& a, const Lane<S>& lane,
                         const int (&end)[2], int j0, float* sh_top) {
  constexpr int M = S::M, WN = S::WN;
  top[0] = top[1] = -INFINITY;
#pragma unroll
  for (int p = 0; p < S::SP; ++p)
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      float& x = s[p][e / 4][e % 4];
      const int c = (lane.wn + p * WN) * 16 + e / 4 * 8 + lane.col + e % 2, h = e / 2 % 2;
      x = (!S::ragged_keys || c < S::BK) && j0 + c < end[h] ? score(a, x) : -INFINITY;
      top[h] = fmaxf(top[h], x);
    }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    top[h] = fmaxf(top[h], __shfl_xor_sync(~0u, top[h], 1));
    top[h] = fmaxf(top[h], __shfl_xor_sync(~0u, top[h], 2));
    if (WN > 1 && lane.col == 0) sh_top[lane.wn * M + lane.row + 8 * h] = top[h];
  }
  if (WN > 1) {
    __syncthreads();
    for (int w = 0; w < WN; ++w)
      for (int h = 0; h < 2; ++h) top[h] = fmaxf(top[h], sh_top[w * M + lane.row + 8 * h]);
  }
}

// Moves the state's maxima up to those of the new scores and shrinks its outputs by as much; the sums of weights follow
// when the new weights are added. weights [M, LDP]: the exponentials, rounded to the type of the products.
template <class S>
SSD_DEV void online_softmax(State<S>& st, const Scores<S>& s, const float (&top)[2], float (&shrink)[2],
                            const Lane<S>& lane, uint16_t* weights) {
  using T = typename S::T;
  float base[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float m = fmaxf(st.m[h], top[h]);
    base[h] = m == -INFINITY ? 0.f : m;  // a row that has seen no key: -inf - -inf would be NaN
    shrink[h] = exp2_approx(__fadd_rn(st.m[h], -base[h]));
    st.m[h] = m;
  }
#pragma unroll
  for (int p = 0; p < S::SP; ++p)
#pragma unroll
    for (int e = 0; e < 8; e += 2) {
      const int c = (lane.wn + p * S::WN) * 16 + e / 4 * 8 + lane.col, h = e / 2 % 2;
      if (S::ragged_keys && c >= S::BK) continue;
      *reinterpret_cast<uint32_t*>(weights + (lane.row + 8 * h) * S::LDP + c) =
          pack(T(), exp2_approx(__fadd_rn(s[p][e / 4][e % 4], -base[h])),
               exp2_approx(__fadd_rn(s[p][e / 4][e % 4 + 1], -base[h])));
    }
#pragma unroll
  for (int p = 0; p < S::DP; ++p)
#pragma unroll
    for (int e = 0; e < 8; ++e) st.acc[p][e / 4][e % 4] = __fmul_rn(st.acc[p][e / 4][e % 4], shrink[e / 2 % 2]);
}

}  // namespace ssd::gpu
