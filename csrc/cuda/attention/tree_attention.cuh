// Tree attention over a paged cache: a block reduces a tile of packed rows for one KV head over a span of positions.
//
// A row reduces its keys in tiles of ascending position with an online softmax, and every output element is one chain
// of m16n8k16 products over them. Warps split rows (WM) and columns (4 / WM), never that chain, so the bits of a row
// do not depend on WM, on the rows beside it, nor on where the prefix ends. Multiply and add are fused where the source
// says so and nowhere else. Spans fold in ascending order, here or in the merge kernel, by the same operations.
#pragma once
#include "load.cuh"
#include "online_softmax.cuh"

namespace ssd::gpu {

template <class S>
struct SharedTiles {
  uint16_t* q;  // [M, LD], later the weights [M, LDP]: by then q is in registers
  uint16_t *k, *v;  // [2, BK, LD], two stages
  float* top;  // [WN, M]
  int2* keys;  // [kSpan]
  SSD_DEV explicit SharedTiles(SharedArena arena)
      : q(arena.take<uint16_t>(S::M * S::LD)),
        k(arena.take<uint16_t>(2 * S::BK * S::LD)),
        v(arena.take<uint16_t>(2 * S::BK * S::LD)),
        top(arena.take<float>(S::WN * S::M)),
        keys(arena.take<int2>(kSpan)) {}
};

template <class S>
using Queries = uint32_t[S::D / 16][4];  // 16 rows of q as operands of the products

// Starts the copies of tile i of the span, K and V a group each; of a tile past the last, two empty groups, so that the
// number of groups in flight does not depend on i.
template <class S>
SSD_DEV void start_tile(const SharedTiles<S>& sh, const AttentionArgs& a, int head, int i, int tiles) {
  const int stage = i % 2 * S::BK * S::LD;
  if (i < tiles) load_tile<S>(sh.k + stage, a.k, head, sh.keys + i * S::BK);
  cp_async_commit();
  if (i < tiles) load_tile<S>(sh.v + stage, a.v, head, sh.keys + i * S::BK);
  cp_async_commit();
}

// s = q k^T
template <class S>
SSD_DEV void multiply_keys(Scores<S>& s, const Queries<S>& q, const uint16_t* k, const Lane<S>& lane) {
  using T = typename S::T;
#pragma unroll
  for (int p = 0; p < S::SP; ++p) {
    const int pair = lane.wn + p * S::WN;
    if (S::ragged_keys && pair >= S::BK / 16) break;
#pragma unroll
    for (int c = 0; c < S::D / 16; ++c) {
      uint32_t b[4];
      ldmatrix_x4(b, k + (pair * 16 + lane.id / 16 * 8 + lane.id % 8) * S::LD + c * 16 + lane.id / 8 % 2 * 8);
      mma(T(), s[p][0], q[c], b[0], b[1]);
      mma(T(), s[p][1], q[c], b[2], b[3]);
    }
  }
}

// acc += weights v; sum += the weights as the products take them, rounded.
template <class S>
SSD_DEV void multiply_values(State<S>& st, float (&sum)[2], const uint16_t* weights, const uint16_t* v,
                             const Lane<S>& lane) {
  using T = typename S::T;
#pragma unroll
  for (int k = 0; k < S::BK / 16; ++k) {
    uint32_t w[4];
    ldmatrix_x4(w, weights + (lane.wm * 16 + lane.id % 16) * S::LDP + k * 16 + lane.id / 16 * 8);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float2 lo = unpack(T(), w[h]), hi = unpack(T(), w[h + 2]);
      sum[h] = __fadd_rn(sum[h], __fadd_rn(__fadd_rn(lo.x, lo.y), __fadd_rn(hi.x, hi.y)));
    }
#pragma unroll
    for (int p = 0; p < S::DP; ++p) {
      const int pair = lane.wn + p * S::WN;
      if (S::ragged_dims && pair >= S::D / 16) break;
      uint32_t b[4];
      ldmatrix_x4_trans(b, v + (k * 16 + lane.id % 16) * S::LD + pair * 16 + lane.id / 16 * 8);
      mma(T(), st.acc[p][0], w, b[0], b[1]);
      mma(T(), st.acc[p][1], w, b[2], b[3]);
    }
  }
}

// Adds the values that remove_non_finite left out of the tile whose first key is at j0, to the rows that see them.
template <class S>
SSD_DEV void add_non_finite_values(State<S>& st, const AttentionArgs& a, int head, const int2* keys,
                                   const uint16_t* weights, const Lane<S>& lane, const int (&end)[2], int j0) {
#pragma unroll
  for (int p = 0; p < S::DP; ++p)
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const int d = (lane.wn + p * S::WN) * 16 + e / 4 * 8 + lane.col + e % 2, h = e / 2 % 2;
      if (S::ragged_dims && d >= S::D) continue;
      float& x = st.acc[p][e / 4][e % 4];
      x = add_non_finite<S>(x, a.v, head, keys, weights + (lane.row + 8 * h) * S::LDP, d, end[h] - j0);
    }
}

// Reduces the keys of one span, positions start to last at most, to the state.
template <class S>
SSD_DEV void reduce_span(State<S>& st, const Queries<S>& q, const SharedTiles<S>& sh, const AttentionArgs& a,
                         const Tile& tile, const Lane<S>& lane, int head, int group, int start, int last) {
  constexpr int BK = S::BK;
  int end[2];  // position behind the last key that a row sees
  for (int h = 0; h < 2; ++h) {
    const int t = (tile.m0 + lane.row + 8 * h) / group;
    end[h] = t < tile.rows ? tile.end + tile.step * t : 0;
  }
  uint16_t* weights = sh.q;
  const int tiles = (min(last - start, kSpan) + BK - 1) / BK;
  for (int i = 0; i < tiles; ++i) {
    const int stage = i % 2 * BK * S::LD, j0 = start + i * BK;
    cp_async_wait<1>();  // K has landed, V may be on its way
    __syncthreads();
    start_tile(sh, a, head, i + 1, tiles);

    Scores<S> s = {};
    float top[2], shrink[2], sum[2] = {0, 0};
    multiply_keys<S>(s, q, sh.k + stage, lane);
    mask_scores<S>(s, top, a, lane, end, j0, sh.top);
    online_softmax<S>(st, s, top, shrink, lane, weights);
    cp_async_wait<2>();  // V has landed
    __syncthreads();
    const bool ragged_rows = tile.step && j0 + BK > tile.end;
    const bool non_finite = ragged_rows && __syncthreads_or(remove_non_finite<S>(sh.v + stage));
    multiply_values<S>(st, sum, weights, sh.v + stage, lane);
    for (int h = 0; h < 2; ++h) st.l[h] = __fadd_rn(__fmul_rn(st.l[h], shrink[h]), sum[h]);
    if (non_finite) add_non_finite_values<S>(st, a, head, sh.keys + i * BK, weights, lane, end, j0);
  }
}

// Stores a span: as partial results where the call is split, else folded into those of the spans before it, whose
// maxima and sums are m and l. The last span of a call that is not split goes to the output.
template <class S>
SSD_DEV void store_span(State<S>& st, float (&m)[2], float (&l)[2], const AttentionArgs& a, const Tile& tile,
                        const Lane<S>& lane, int head, int group, int span, bool first, bool last) {
  using T = typename S::T;
  constexpr int D = S::D;
  const bool done = !a.split && last;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    st.l[h] = __fadd_rn(st.l[h], __shfl_xor_sync(~0u, st.l[h], 1));
    st.l[h] = __fadd_rn(st.l[h], __shfl_xor_sync(~0u, st.l[h], 2));
    const int packed = tile.m0 + lane.row + 8 * h, t = packed / group;
    const int64_t unit = (int64_t(tile.row) + t) * a.q_heads + head * group + packed % group;
    const int64_t part = a.split ? span * (int64_t(a.rows) * a.q_heads) + unit : unit;
    const Fold fold(m[h], st.m[h]);
    m[h] = fold.m;
    l[h] = fold(l[h], st.l[h]);
    if (t >= tile.rows) continue;
    if (lane.wn == 0 && lane.col == 0) {
      if (a.split) a.part_ml[part] = {st.m[h], st.l[h]};
      if (done && a.lse) a.lse[unit] = log_sum(m[h], l[h]);
    }
    const float inverse = inverse_sum(l[h]);
#pragma unroll
    for (int p = 0; p < S::DP; ++p)
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const int d = (lane.wn + p * S::WN) * 16 + n * 8 + lane.col;
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

// Reduces spans [span, stop) of a tile, one after the other.
template <class S>
SSD_DEV void attend(const AttentionArgs& a, const Tile& tile, int head, int group, int span, int stop) {
  const Lane<S> lane;
  const int last = tile.last(S::M, group);
  const SharedTiles<S> sh{SharedArena()};
  load_q<S>(sh.q, a, tile, group, head);
  __syncthreads();
  Queries<S> q;
#pragma unroll
  for (int c = 0; c < S::D / 16; ++c)
    ldmatrix_x4(q[c], sh.q + (lane.wm * 16 + lane.id % 16) * S::LD + c * 16 + lane.id / 16 * 8);

  float m[2] = {-INFINITY, -INFINITY}, l[2] = {0, 0};  // of the spans folded so far
  for (bool first = true; span < stop; ++span, first = false) {
    const int start = span * kSpan;
    __syncthreads();
    find_keys(sh.keys, a, tile, start, last);
    __syncthreads();
    start_tile(sh, a, head, 0, 1);
    State<S> st = {{}, {-INFINITY, -INFINITY}, {0, 0}};
    reduce_span<S>(st, q, sh, a, tile, lane, head, group, start, last);
    cp_async_wait<0>();
    store_span<S>(st, m, l, a, tile, lane, head, group, span, first, span + 1 == stop);
  }
}

struct Work {  // spans [span, stop) of a tile
  Tile tile;
  int span, stop;
  bool alone;  // the tile is one row, over the keys of its own path
};

// The work of this block; no spans where there is none. Blocks of packed rows come first, then those of single rows.
template <class S>
SSD_DEV Work find_work(const AttentionArgs& a, int group) {
  using One = AttentionShape<typename S::T, S::D, 1>;  // for a row that is a tile of its own
  const int packed_blocks = a.packed * (a.split ? a.spans : 1);
  const int block = int(blockIdx.x) - packed_blocks, per_row = (group + One::M - 1) / One::M;
  const bool alone = block >= 0;
  const int unit = alone ? block / a.alone_spans : int(blockIdx.x) % a.packed;
  const Request r =
      find_request(a.row_offsets, a.requests, alone ? unit / per_row : unit, alone ? 1 : group, alone ? 1 : S::M);
  if (r.index < 0) return {{}, 0, 0, alone};
  const int prefix = a.prefix_lens[r.index];
  const int end = a.mask ? prefix / kSpan * kSpan : prefix + 1;
  Tile tile = {r.index, r.row, r.rows, r.unit * S::M, prefix, end, a.mask ? 0 : 1, nullptr};
  const int span = alone ? prefix / kSpan + block % a.alone_spans : int(blockIdx.x) / a.packed;
  if (alone) {
    const int64_t* path = a.mask + (unit / per_row) * a.mask_row;
    tile = {r.index, unit / per_row, 1, unit % per_row * One::M, prefix, prefix + count_bits(path, a.words), 0, path};
  }
  const int stop = (tile.last(S::M, group) + kSpan - 1) / kSpan;
  if (a.split) return {tile, span, min(stop, span + 1), alone};
  return {tile, 0, max(stop, 1), alone};  // a row that sees nothing is written too
}

template <class S>
__global__ void __launch_bounds__(kThreads, S::min_blocks) tree_attention_span_kernel(const AttentionArgs a) {
  const int group = a.q_heads / a.kv_heads, head = blockIdx.y;
  const Work work = find_work<S>(a, group);
  if (work.span >= work.stop) return;
  if constexpr (S::WM == 1) {
    attend<S>(a, work.tile, head, group, work.span, work.stop);
  } else {
    using One = AttentionShape<typename S::T, S::D, 1>;
    if (work.alone) attend<One>(a, work.tile, head, group, work.span, work.stop);
    else attend<S>(a, work.tile, head, group, work.span, work.stop);
  }
}

}  // namespace ssd::gpu
