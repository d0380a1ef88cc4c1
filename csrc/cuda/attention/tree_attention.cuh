// Tree attention over a paged cache: a block reduces a tile of packed rows for one KV head over a span of positions.
//
// A row reduces its keys in tiles of ascending position with an online softmax, and every output element is one chain
// of m16n8k16 products over them. Warps split rows (WM) and columns (4 / WM), never that chain, so the bits of a row
// do not depend on WM, on the rows beside it, nor on where the prefix ends. Multiply and add are fused where it is
// written and nowhere else. Spans fold in ascending order, here or in the merge kernel, by the same operations.
#pragma once
#include "load.cuh"

namespace ssd::gpu {

// Scores in powers of two from raw products.
SSD_DEV float score(const AttentionArgs& a, float s) {
  const float x = __fmul_rn(s, a.scale);
  if (a.softcap == 0) return x;
  const float e = exp2_approx(x);  // tanh(y) = 1 - 2 / (1 + exp(2 y))
  return __fmul_rn(a.softcap, __fadd_rn(1.f, -__fmul_rn(2.f, __frcp_rn(__fadd_rn(1.f, e)))));
}

template <class S>
struct SharedTiles {
  uint16_t *q, *k, *v;  // [M, LD], later the weights [M, LDP]; [2, BK, LD]
  float* top;           // [WN, M]
  int2* keys;           // [kSpan]
  SSD_DEV explicit SharedTiles(SharedArena arena)
      : q(arena.take<uint16_t>(S::M * S::LD)),
        k(arena.take<uint16_t>(2 * S::BK * S::LD)),
        v(arena.take<uint16_t>(2 * S::BK * S::LD)),
        top(arena.take<float>(S::WN * S::M)),
        keys(arena.take<int2>(kSpan)) {}
};

// Softmax state of two rows (h = 0, 1: row lane / 4 and the one 8 below) and this warp's columns.
template <class S>
struct State {
  float acc[S::DP][2][4], m[2], l[2];  // l: this lane's columns alone, until the span ends
};

template <class S>
SSD_DEV void reduce_span(State<S>& st, const uint32_t (&q)[S::D / 16][4], const SharedTiles<S>& sh,
                         const AttentionArgs& a, const Tile& tile, int head, int group, int start, int last) {
  using T = typename S::T;
  constexpr int D = S::D, BK = S::BK, LD = S::LD, LDP = S::LDP, M = S::M, WN = S::WN;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, wm = warp / WN, wn = warp % WN;
  const int row = wm * 16 + lane / 4, col = lane % 4 * 2;
  int end[2];  // of the two rows
  for (int h = 0; h < 2; ++h) {
    const int t = (tile.m0 + row + 8 * h) / group;
    end[h] = t < tile.rows ? tile.end + tile.step * t : 0;
  }
  const int tiles = (min(last - start, kSpan) + BK - 1) / BK;
  for (int i = 0; i < tiles; ++i) {
    const int stage = i % 2 * BK * LD, next = BK * LD - stage, j0 = start + i * BK;
    cp_async_wait<1>();  // K has landed, V may be on its way
    __syncthreads();
    if (i + 1 < tiles) load_tile<S>(sh.k + next, a.k, head, sh.keys + (i + 1) * BK);
    cp_async_commit();
    if (i + 1 < tiles) load_tile<S>(sh.v + next, a.v, head, sh.keys + (i + 1) * BK);
    cp_async_commit();

    float s[S::SP][2][4] = {};  // q k^T: [16 rows, SP pairs of 8 keys]
#pragma unroll
    for (int p = 0; p < S::SP; ++p) {
      const int pair = wn + p * WN;
      if (S::ragged_keys && pair >= BK / 16) break;
#pragma unroll
      for (int c = 0; c < D / 16; ++c) {
        uint32_t b[4];
        ldmatrix_x4(b, sh.k + stage + (pair * 16 + lane / 16 * 8 + lane % 8) * LD + c * 16 + lane / 8 % 2 * 8);
        mma(T(), s[p][0], q[c], b[0], b[1]);
        mma(T(), s[p][1], q[c], b[2], b[3]);
      }
    }

    float top[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int p = 0; p < S::SP; ++p)
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        float& x = s[p][e / 4][e % 4];
        const int c = (wn + p * WN) * 16 + e / 4 * 8 + col + e % 2, h = e / 2 % 2;
        x = (!S::ragged_keys || c < BK) && j0 + c < end[h] ? score(a, x) : -INFINITY;
        top[h] = fmaxf(top[h], x);
      }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      top[h] = fmaxf(top[h], __shfl_xor_sync(~0u, top[h], 1));
      top[h] = fmaxf(top[h], __shfl_xor_sync(~0u, top[h], 2));
      if (WN > 1 && col == 0) sh.top[wn * M + row + 8 * h] = top[h];
    }
    if (WN > 1) {
      __syncthreads();
      for (int w = 0; w < WN; ++w)
        for (int h = 0; h < 2; ++h) top[h] = fmaxf(top[h], sh.top[w * M + row + 8 * h]);
    }

    float base[2], shrink[2], sum[2] = {0, 0};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      top[h] = fmaxf(st.m[h], top[h]);
      base[h] = top[h] == -INFINITY ? 0.f : top[h];
      shrink[h] = exp2_approx(__fadd_rn(st.m[h], -base[h]));
      st.m[h] = top[h];
    }
    uint16_t* weights = sh.q;  // q lives in registers by now
#pragma unroll
    for (int p = 0; p < S::SP; ++p)
#pragma unroll
      for (int e = 0; e < 8; e += 2) {
        const int c = (wn + p * WN) * 16 + e / 4 * 8 + col, h = e / 2 % 2;
        if (S::ragged_keys && c >= BK) continue;
        *reinterpret_cast<uint32_t*>(weights + (row + 8 * h) * LDP + c) =
            pack(T(), exp2_approx(__fadd_rn(s[p][e / 4][e % 4], -base[h])),
                 exp2_approx(__fadd_rn(s[p][e / 4][e % 4 + 1], -base[h])));
      }
#pragma unroll
    for (int p = 0; p < S::DP; ++p)
#pragma unroll
      for (int e = 0; e < 8; ++e) st.acc[p][e / 4][e % 4] = __fmul_rn(st.acc[p][e / 4][e % 4], shrink[e / 2 % 2]);
    cp_async_wait<2>();  // V has landed
    __syncthreads();
    const bool ragged_rows = tile.step && j0 + BK > tile.end;
    const bool non_finite = ragged_rows && __syncthreads_or(take_out_non_finite<S>(sh.v + stage));

#pragma unroll
    for (int k = 0; k < BK / 16; ++k) {
      uint32_t w[4];
      ldmatrix_x4(w, weights + (wm * 16 + lane % 16) * LDP + k * 16 + lane / 16 * 8);
#pragma unroll
      for (int h = 0; h < 2; ++h) {  // the sum is of the rounded weights, as the products are
        const float2 lo = unpack(T(), w[h]), hi = unpack(T(), w[h + 2]);
        sum[h] = __fadd_rn(sum[h], __fadd_rn(__fadd_rn(lo.x, lo.y), __fadd_rn(hi.x, hi.y)));
      }
#pragma unroll
      for (int p = 0; p < S::DP; ++p) {
        const int pair = wn + p * WN;
        if (S::ragged_dims && pair >= D / 16) break;
        uint32_t b[4];
        ldmatrix_x4_trans(b, sh.v + stage + (k * 16 + lane % 16) * LD + pair * 16 + lane / 16 * 8);
        mma(T(), st.acc[p][0], w, b[0], b[1]);
        mma(T(), st.acc[p][1], w, b[2], b[3]);
      }
    }
    for (int h = 0; h < 2; ++h) st.l[h] = __fadd_rn(__fmul_rn(st.l[h], shrink[h]), sum[h]);
    if (non_finite) {
#pragma unroll
      for (int p = 0; p < S::DP; ++p)
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          const int d = (wn + p * WN) * 16 + e / 4 * 8 + col + e % 2, h = e / 2 % 2;
          if (S::ragged_dims && d >= D) continue;
          float& x = st.acc[p][e / 4][e % 4];
          x = add_non_finite<S>(x, a.v, head, sh.keys + i * BK, weights + (row + 8 * h) * LDP, d, end[h] - j0);
        }
    }
  }
}

// Spans [span, stop) of a tile, one after the other: to the partial results, or folded to the output.
template <class S>
SSD_DEV void attend(const AttentionArgs& a, const Tile& tile, int head, int group, int span, int stop) {
  using T = typename S::T;
  constexpr int D = S::D, WN = S::WN;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, wm = warp / WN, wn = warp % WN;
  const int row = wm * 16 + lane / 4, col = lane % 4 * 2, last = tile.last(S::M, group);
  const SharedTiles<S> sh{SharedArena()};
  load_q<S>(sh.q, a, tile, group, head);
  __syncthreads();
  uint32_t q[D / 16][4];
#pragma unroll
  for (int c = 0; c < D / 16; ++c) ldmatrix_x4(q[c], sh.q + (wm * 16 + lane % 16) * S::LD + c * 16 + lane / 16 * 8);

  float m[2] = {-INFINITY, -INFINITY}, l[2] = {0, 0};  // of the spans folded so far
  for (bool first = true; span < stop; ++span, first = false) {
    const int start = span * kSpan;
    __syncthreads();
    find_keys(sh.keys, a, tile, start, last);
    __syncthreads();
    load_tile<S>(sh.k, a.k, head, sh.keys);
    cp_async_commit();
    load_tile<S>(sh.v, a.v, head, sh.keys);
    cp_async_commit();
    State<S> st = {{}, {-INFINITY, -INFINITY}, {0, 0}};
    reduce_span<S>(st, q, sh, a, tile, head, group, start, last);
    cp_async_wait<0>();

#pragma unroll
    for (int h = 0; h < 2; ++h) {
      st.l[h] = __fadd_rn(st.l[h], __shfl_xor_sync(~0u, st.l[h], 1));
      st.l[h] = __fadd_rn(st.l[h], __shfl_xor_sync(~0u, st.l[h], 2));
      const int packed = tile.m0 + row + 8 * h, t = packed / group;
      const int64_t unit = (int64_t(tile.row) + t) * a.q_heads + head * group + packed % group;
      const int64_t part = a.split ? span * (int64_t(a.rows) * a.q_heads) + unit : unit;
      const Fold fold(m[h], st.m[h]);
      m[h] = fold.m, l[h] = fold(l[h], st.l[h]);
      if (t >= tile.rows) continue;
      const bool done = !a.split && span + 1 == stop;
      if (wn == 0 && col == 0) {
        if (a.split) a.part_ml[part] = {st.m[h], st.l[h]};
        if (done && a.lse) a.lse[unit] = log_sum(m[h], l[h]);
      }
      const float inverse = inverse_sum(l[h]);
#pragma unroll
      for (int p = 0; p < S::DP; ++p)
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const int d = (wn + p * WN) * 16 + n * 8 + col;
          if (S::ragged_dims && d >= D) continue;
          float2 x = {st.acc[p][n][2 * h], st.acc[p][n][2 * h + 1]};
          float2* at = reinterpret_cast<float2*>(a.part + part * D + d);
          if (!a.split) {
            const float2 old = first ? float2{0, 0} : *at;  // this thread's own
            x = {fold(old.x, x.x), fold(old.y, x.y)};
          }
          if (done) store_pair<T>(a, unit * D + d, __fmul_rn(x.x, inverse), __fmul_rn(x.y, inverse));
          else *at = x;
        }
    }
  }
}

template <class S>
__global__ void __launch_bounds__(kThreads, S::min_blocks) tree_attention_span_kernel(const AttentionArgs a) {
  using One = AttentionShape<typename S::T, S::D, 1>;  // of a row that is a tile of its own
  const int group = a.q_heads / a.kv_heads, head = blockIdx.y, packed_blocks = a.packed * (a.split ? a.spans : 1);
  const int block = int(blockIdx.x) - packed_blocks, per_row = (group + One::M - 1) / One::M;
  const bool alone = block >= 0;
  const int unit = alone ? block / a.alone_spans : int(blockIdx.x) % a.packed;
  const Request r =
      find_request(a.row_offsets, a.requests, alone ? unit / per_row : unit, alone ? 1 : group, alone ? 1 : S::M);
  if (r.index < 0) return;
  const int prefix = a.prefix_lens[r.index];
  Tile tile = {r.index,        r.row,  r.rows, r.unit * S::M, prefix, a.mask ? prefix / kSpan * kSpan : prefix + 1,
               a.mask ? 0 : 1, nullptr};
  int span = alone ? prefix / kSpan + block % a.alone_spans : int(blockIdx.x) / a.packed;
  if (alone) {
    const int64_t* path = a.mask + (unit / per_row) * a.mask_row;
    tile = {r.index, unit / per_row, 1, unit % per_row * One::M, prefix, prefix + count_bits(path, a.words), 0, path};
  }
  int stop = (tile.last(S::M, group) + kSpan - 1) / kSpan;
  if (a.split) {
    if (span >= stop) return;
    stop = span + 1;
  } else {
    span = 0, stop = max(stop, 1);  // a row that sees nothing is written too
  }
  if constexpr (S::WM == 1) {
    attend<S>(a, tile, head, group, span, stop);
  } else {
    if (alone) attend<One>(a, tile, head, group, span, stop);
    else attend<S>(a, tile, head, group, span, stop);
  }
}

}  // namespace ssd::gpu
