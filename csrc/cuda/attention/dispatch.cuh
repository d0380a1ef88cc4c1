// Chooses kernel instances and grids by run-time dtype, head_dim and row count, for any launcher: the CUDA one, the
// host harness and the kernel report.
#pragma once
#include "merge.cuh"

namespace ssd::gpu {

constexpr bool attention_has(int64_t head_dim) {
  return head_dim == 64 || head_dim == 80 || head_dim == 96 || head_dim == 128 || head_dim == 256;
}

// How a launch maps the work to blocks; the bits are the same under every plan.
struct AttentionPlan {
  int wm;  // warps along the rows, 1, 2 or 4: more need K and V in fewer blocks, fewer give few rows all four warps
  bool split;  // one block for each span, then a merge
};

inline AttentionPlan plan_attention(const AttentionArgs& a, int64_t head_dim) {
  const int64_t group = a.q_heads / a.kv_heads, packed = a.rows * group / (a.requests > 0 ? a.requests : 1);
  const int wm = packed <= 16 ? 1 : packed <= 32 || head_dim > 128 ? 2 : 4;
  const int64_t blocks = a.rows * group / (16 * wm) * a.kv_heads;
  const bool prefill = !a.mask && packed >= 128 && blocks >= 256;  // partial results would outweigh K and V
  return {wm, !prefill && int64_t(a.table_len) * a.page_size > kSpan};
}

// Fills in what follows from the other arguments and the plan.
inline void finish_args(AttentionArgs& a, AttentionPlan plan, float scale, float softcap) {
  constexpr float log2e = 1.4426950408889634f;
  a.scale = softcap > 0 ? 2 * log2e * scale / softcap : scale * log2e;
  a.softcap = softcap > 0 ? softcap * log2e : 0;
  a.spans = int((int64_t(a.table_len) * a.page_size + kSpan - 1) / kSpan);
  a.split = plan.split;
  const int64_t tiles = int64_t(a.rows) * (a.q_heads / a.kv_heads) / (16 * plan.wm) + a.requests;
  a.packed = a.mask && !a.split ? 0 : int(tiles);  // at least the sum of the ceilings over the requests
  a.alone_spans = !a.mask ? 0 : a.split ? std::min(a.spans, (64 * a.words + 2 * kSpan - 2) / kSpan) : 1;
}

// How many spans' results the plan keeps for every row: part has attention_parts * R * Hq * D elements.
inline int64_t attention_parts(const AttentionArgs& a) { return a.split ? a.spans : a.spans > 1 ? 1 : 0; }

// launch(kernel, grid x, grid y, threads, shared bytes)
template <class T, int D, int WM, class Launch>
void launch_attention(const AttentionArgs& a, Launch&& launch) {
  using S = AttentionShape<T, D, WM>;
  const int64_t alone = a.alone_spans * (int64_t(a.rows) * ((a.q_heads / a.kv_heads + 15) / 16));
  launch(tree_attention_span_kernel<S>, int64_t(a.packed) * (a.split ? a.spans : 1) + alone, a.kv_heads, kThreads,
         S::shared_bytes);
  if (!a.split) return;
  const int64_t units = int64_t(a.rows) * a.q_heads, warps = kThreads / 32;
  launch(tree_attention_merge_kernel<T, D>, (units + warps - 1) / warps, 1, kThreads, 0);
}

template <class T, int D, class Launch>
void dispatch_rows(const AttentionArgs& a, int wm, Launch&& launch) {
  if (wm == 1) return launch_attention<T, D, 1>(a, launch);
  if constexpr (D > 128) return launch_attention<T, D, 2>(a, launch);  // four would not fit the register file
  else return wm == 2 ? launch_attention<T, D, 2>(a, launch) : launch_attention<T, D, 4>(a, launch);
}

template <class T, class Launch>
void dispatch_attention(const AttentionArgs& a, AttentionPlan plan, int64_t head_dim, Launch&& launch) {
  if (a.rows == 0) return;
  if (head_dim == 64) dispatch_rows<T, 64>(a, plan.wm, launch);
  if (head_dim == 80) dispatch_rows<T, 80>(a, plan.wm, launch);
  if (head_dim == 96) dispatch_rows<T, 96>(a, plan.wm, launch);
  if (head_dim == 128) dispatch_rows<T, 128>(a, plan.wm, launch);
  if (head_dim == 256) dispatch_rows<T, 256>(a, plan.wm, launch);
}

}  // namespace ssd::gpu
