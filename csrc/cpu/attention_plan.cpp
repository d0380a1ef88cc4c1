// How one attention call is split among threads. The split never changes a result.
#include <algorithm>

#include "kernels.h"

namespace ssd {

AttentionPlan plan_attention(const AttentionArgs& a, int threads) {
  const int group = int(a.heads / a.kv_heads);
  AttentionPlan plan;
  std::vector<AttentionTask> passes;
  std::vector<int> keys;  // how many keys each row of the request sees
  for (int b = 0; b < a.requests; ++b) {
    const int first = a.row_offsets[b], rows = a.row_offsets[b + 1] - first;
    keys.assign(rows, a.prefix_lens[b]);
    for (int t = 0; t < rows; ++t) {
      if (!a.mask) keys[t] += t + 1;
      for (int w = 0; a.mask && w < a.words; ++w)
        keys[t] += __builtin_popcountll(uint64_t(a.mask[(first + t) * a.words + w]));
    }
    for (int h = 0; h < a.kv_heads; ++h)
      for (int v = 0; v < rows * group; v += kBlock) {
        const int n = std::min(kBlock, rows * group - v);
        const int most = *std::max_element(&keys[v / group], &keys[(v + n - 1) / group] + 1);
        passes.push_back({b, h, v, n, 0, (most + kSpan - 1) / kSpan, -1});
      }
  }
  const bool split = threads > 1 && int(passes.size()) < 4 * threads;
  for (auto& p : passes) {
    if (!split || p.spans < 2) {
      plan.tasks.push_back(p);
      continue;
    }
    p.partial = plan.partials;
    plan.merges.push_back(p);
    for (int s = 0; s < p.spans; ++s, plan.partials += p.n)
      plan.tasks.push_back({p.request, p.kv_head, p.vec, p.n, s, 1, plan.partials});
  }
  return plan;
}

}  // namespace ssd
