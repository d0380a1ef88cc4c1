// Coupled sampling (the Gumbel-max trick with shared noise) and the F best of its score.
#pragma once
#include "filter.h"
#include "kernels.h"
#include "noise.h"

namespace ssd {
namespace SSD_ISA {

// Calls visit(id, z - log E) in ascending order for every survivor that may score above bar, which visit may raise.
template <class Visit>
SSD_INLINE void scan_scores(const Row& r, const Noise& noise, const Cut& cut, const float& bar, Visit visit) {
  for (int64_t i = 0; i < r.n; i += 64) {
    f32x16 z[4];
    for (int j = 0; j < 4; ++j) z[j] = scaled(r, i + 16 * j);
    f32x16 low = set1(std::max(cut.z, bar + kMinLogE));  // no noise lifts a lesser z above bar
    if (less(max(max(z[0], z[1]), max(z[2], z[3])), low) == 0xffff) continue;
    u32x16 words[4];
    noise64(noise, i, words);
    for (int j = 0; j < 4; ++j) {
      uint32_t m = less(set1(bar), score_bound(z[j], words[j])) & ~less(z[j], low);
      if (!m) continue;
      float zs[16], scores[16];
      store(zs, z[j]);
      store(scores, z[j] - log_exponential(words[j]));
      for (; m; m &= m - 1) {
        int lane = __builtin_ctz(m);
        int64_t id = i + 16 * j + lane;
        if (scores[lane] > bar && cut.keeps(zs[lane], id)) visit(id, scores[lane]);
      }
    }
  }
}

// argmax of z - log E over the survivors. The greatest z is 0 and survives, so the answer scores above -kMaxLogE.
inline int64_t coupled_token(const Row& r, const Noise& noise, const Cut& cut) {
  float best = -kMaxLogE;
  int64_t token = -1;
  scan_scores(r, noise, cut, best, [&](int64_t id, float score) { token = id, best = score; });
  return token;
}

// The token of row r under the parameters of entry e, drawn with the noise of `position`.
// A negative token is an error: kNotFinite for NaN or +inf among the logits, kAllMasked for nothing but -inf.
inline int64_t sample_row(const float* logits, int64_t n, const SamplingParams& s, int64_t e, int64_t position,
                          float* logprob) {
  Row r{logits, n, max_logit(logits, n), 1.f};
  if (r.max != r.max) return kNotFinite;
  if (r.max == -INFINITY) return kAllMasked;
  int64_t token;
  float t = s.temperature[e];
  if (t == 0.f) {
    token = first_max(logits, n, r.max);
  } else {
    r.inverse = std::min(1.f / t, std::numeric_limits<float>::max());
    Noise noise{uint64_t(s.seeds[e]), uint32_t(position), kCoupled};
    token = coupled_token(r, noise, filter(r, s.top_k[e], s.top_p[e], s.min_p[e]));
  }
  r.inverse = 1.f;
  if (logprob) *logprob = float((logits[token] - r.max) - std::log(exp_sum(r)));
  return token;
}

inline void sample(const SampleArgs& a, Team& team) {
  int64_t r0, r1;
  team.share(a.rows, r0, r1);
  for (int64_t r = r0; r < r1; ++r)
    a.tokens[r] = sample_row(a.logits + r * a.stride, a.vocab, a.params, r, a.params.positions[r],
                             a.logprobs ? a.logprobs + r : nullptr);
}

inline void noise(const NoiseArgs& a, Team& team) {
  int64_t r0, r1;
  team.share(a.rows, r0, r1);
  for (int64_t r = r0; r < r1; ++r)
    for (int64_t i = 0; i < a.ids; i += 64) {
      u32x16 words[4];
      uint32_t t[64];
      noise64({uint64_t(a.seeds[r]), uint32_t(a.positions[r]), a.purpose}, i, words);
      for (int j = 0; j < 4; ++j) store_u32(t + 16 * j, words[j]);
      for (int64_t j = i; j < std::min(i + 64, a.ids); ++j) a.words[r * a.ids + j] = t[j - i];
    }
}

}  // namespace SSD_ISA
}  // namespace ssd
