// Folds the spans of a row in ascending order; each (row, query head) has one warp.
#pragma once
#include "tree_attention.cuh"

namespace ssd::gpu {

template <class T, int D>
__global__ void __launch_bounds__(kThreads) tree_attention_merge_kernel(const AttentionArgs a) {
  const int64_t units = int64_t(a.rows) * a.q_heads, unit = blockIdx.x * int64_t(kThreads / 32) + threadIdx.x / 32;
  if (unit >= units) return;
  const int lane = threadIdx.x % 32, row = int(unit / a.q_heads);
  const Request r = find_request(a.row_offsets, a.requests, row, 1, 1);
  if (r.index < 0) return;
  const int path = a.mask ? count_bits(a.mask + row * a.mask_row, a.words) : r.unit + 1;
  const int spans = min(a.spans, (a.prefix_lens[r.index] + path + kSpan - 1) / kSpan);

  constexpr int quads = D / 4, per_lane = (quads + 31) / 32;
  float4 o[per_lane] = {};
  float m = -INFINITY, l = 0;
#pragma unroll 4
  for (int s = 0; s < spans; ++s) {
    const float2 ml = a.part_ml[s * units + unit];
    const Fold fold(m, ml.x);
    m = fold.m, l = fold(l, ml.y);
    const float4* part = reinterpret_cast<const float4*>(a.part + (s * units + unit) * D);
#pragma unroll
    for (int i = 0; i < per_lane; ++i) {
      const int c = lane + 32 * i;
      if (quads % 32 && c >= quads) continue;
      const float4 x = part[c];
      o[i] = {fold(o[i].x, x.x), fold(o[i].y, x.y), fold(o[i].z, x.z), fold(o[i].w, x.w)};
    }
  }

  const float inverse = inverse_sum(l);
  if (a.lse && lane == 0) a.lse[unit] = log_sum(m, l);
#pragma unroll
  for (int i = 0; i < per_lane; ++i) {
    const int c = lane + 32 * i;
    if (quads % 32 && c >= quads) continue;
    store_pair<T>(a, unit * D + 4 * c, __fmul_rn(o[i].x, inverse), __fmul_rn(o[i].y, inverse));
    store_pair<T>(a, unit * D + 4 * c + 2, __fmul_rn(o[i].z, inverse), __fmul_rn(o[i].w, inverse));
  }
}

}  // namespace ssd::gpu
