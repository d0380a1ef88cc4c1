// Arguments of the tree attention kernels, the shape of a block, and the fold of two partial results.
#pragma once
#include <ssd/attention.h>

#include "../ptx.cuh"

namespace ssd::gpu {

constexpr int kThreads = 128;

struct CacheView {  // [pages, page_size, Hkv, D], strides in elements
  const uint16_t* data;
  int64_t page, slot, head;
};

struct AttentionArgs {
  const void* q;  // [R, Hq, D] in the cache's dtype or float
  int64_t q_row, q_head;
  CacheView k, v;
  const int32_t* page_table;  // [B, table_len]
  int64_t table_row;
  const int32_t* prefix_lens;  // [B]
  const int32_t* row_offsets;  // [B + 1]
  const int64_t* mask;         // [R, words], or null: causal chains
  int64_t mask_row;
  void* out;        // [R, Hq, D] contiguous, in the dtype of q
  float* lse;       // [R, Hq], or null
  float* part;      // [parts, R, Hq, D]
  float2* part_ml;  // [parts, R, Hq]: maximum (in powers of two) and sum
  int requests, rows, q_heads, kv_heads, page_size, table_len, words;
  float scale;  // from products to scores in powers of two; with a soft cap, to twice the tanh's argument, likewise
  float softcap;  // soft cap in powers of two, or 0
  bool q_float;
  // the plan
  bool split;  // a block reduces one span and another kernel folds them; otherwise a block folds its own spans
  int spans;  // spans that the page table can reach
  int packed;  // blocks for tiles of packed rows: at least as many as there are tiles
  int alone_spans;  // blocks along the tail of a row that is a tile of its own; 0 if there are none
};

template <class T_, int D_, int WM_>
struct AttentionShape {
  using T = T_;
  static constexpr int D = D_, WM = WM_, WN = 4 / WM_, M = 16 * WM_;  // warps along the rows and the columns
  static constexpr int BK = D > 128 ? 32 : 64;  // keys per tile
  static constexpr int LD = D + 8, LDP = BK + 8;  // padded rows: no two of eight share a bank in ldmatrix
  static constexpr int SP = (BK / 16 + WN - 1) / WN;  // pairs of 8-key columns of scores per warp
  static constexpr int DP = (D / 16 + WN - 1) / WN;  // pairs of 8-wide columns of output per warp
  static constexpr bool ragged_keys = SP * WN * 16 > BK, ragged_dims = DP * WN * 16 > D;
  static constexpr int min_blocks = D > 128 ? 1 : 2 + (WM == 1) + (D <= 64 && WM < 4);  // blocks per multiprocessor
  static constexpr int shared_bytes = 2 * (M * LD + 4 * BK * LD) + 4 * WN * M + 8 * kSpan;
};

// Folds the states (m, l, o) of two disjoint sets of keys into one: the first's l and o shrink by `keep`, the second's
// by `add`.
struct Fold {
  float m, keep, add;
  SSD_DEV Fold(float m1, float m2) : m(fmaxf(m1, m2)) {
    const float base = m == -INFINITY ? 0.f : m;
    keep = exp2_approx(__fadd_rn(m1, -base)), add = exp2_approx(__fadd_rn(m2, -base));
  }
  SSD_DEV float operator()(float x, float y) const { return __fmaf_rn(y, add, __fmul_rn(x, keep)); }
};

SSD_DEV float inverse_sum(float l) { return l > 0 ? __frcp_rn(l) : l == 0 ? 0.f : l; }  // NaN stays
SSD_DEV float log_sum(float m, float l) { return l == 0 ? m : __fmul_rn(__fadd_rn(m, log2f(l)), 0.6931471805599453f); }

template <class T>
SSD_DEV void store_pair(const AttentionArgs& a, int64_t at, float x, float y) {
  if (a.q_float) *reinterpret_cast<float2*>(static_cast<float*>(a.out) + at) = {x, y};
  else *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(a.out) + at) = pack(T(), x, y);
}

}  // namespace ssd::gpu
