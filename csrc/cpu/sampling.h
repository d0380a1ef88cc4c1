// Coupled sampling (the Gumbel-max trick with shared noise), and the F tokens with the best scores.
#pragma once
#include "filter.h"
#include "kernels.h"
#include "noise.h"

namespace ssd {
namespace SSD_ISA {

// Calls visit(id, score), ids ascending, for every token inside the cut (for every other token if not `inside`) whose
// score may exceed `bar`, which visit may raise. The score is z - log E, or z without noise; E is the noise of
// ids[token].
template <class Visit>
SSD_INLINE void scan_scores(const Row& r, const Noise* noise, const int64_t* ids, const Cut& cut, bool inside,
                            const float& bar, Visit visit) {
  float floor = inside ? cut.z : -INFINITY;
  for (int64_t i = 0; i < r.n; i += 64) {
    f32x16 z[4];
    for (int j = 0; j < 4; ++j) z[j] = scaled(r, i + 16 * j);
    f32x16 low = set1(std::max(floor, bar + (noise ? kMinLogE : 0.f)));  // no noise lifts a smaller z above bar
    if (less(max(max(z[0], z[1]), max(z[2], z[3])), low) == 0xffff) continue;
    u32x16 words[4];
    if (noise && !ids) noise64(*noise, i, words);
    for (int j = 0; j < 4; ++j) {
      uint32_t m = less(z[j], low) ^ 0xffff;
      if (noise && ids && m) words[j] = noise16(*noise, ids, i + 16 * j, r.n);
      if (noise && m) m &= less(set1(bar), score_bound(z[j], words[j]));
      if (!m) continue;
      float zs[16], scores[16];
      store(zs, z[j]);
      store(scores, noise ? z[j] - log_exponential(words[j]) : z[j]);
      for (; m; m &= m - 1) {
        int lane = __builtin_ctz(m);
        int64_t id = i + 16 * j + lane;
        if (scores[lane] > bar && cut.keeps(zs[lane], id) == inside) visit(id, scores[lane]);
      }
    }
  }
}

// The argmax of z - log E over the survivors. The greatest z is 0 and survives, so the answer scores above -kMaxLogE.
inline int64_t coupled_token(const Row& r, const Noise& noise, const Cut& cut) {
  float best = -kMaxLogE;
  int64_t token = -1;
  scan_scores(r, &noise, nullptr, cut, true, best, [&](int64_t id, float score) { token = id, best = score; });
  return token;
}

// Sets up a row and, at a temperature above 0, its survivors. Returns 0 or an error.
inline int64_t open_row(const float* logits, int64_t n, const SamplingParams& s, int64_t e, Row& r, Cut& cut) {
  r = {logits, n, max_logit(logits, n), 1.f};
  if (r.max != r.max) return kNotFinite;
  if (r.max == -INFINITY) return kAllMasked;
  float t = s.temperature[e];
  if (t == 0.f) return 0;
  r.inverse = std::min(1.f / t, std::numeric_limits<float>::max());
  cut = filter(r, s.top_k[e], s.top_p[e], s.min_p[e]);
  return 0;
}

inline float logprob_of(Row r, int64_t token) {
  r.inverse = 1.f;
  return float((r.logits[token] - r.max) - std::log(exp_sum(r)));
}

// The token of a row under the parameters of entry e, drawn with the noise of `position`; a negative one is an error.
inline int64_t sample_row(const float* logits, int64_t n, const SamplingParams& s, int64_t e, int64_t position,
                          float* logprob) {
  Row r;
  Cut cut;
  if (int64_t error = open_row(logits, n, s, e, r, cut)) return error;
  Noise noise{uint64_t(s.seeds[e]), uint32_t(position), kCoupled};
  int64_t token = s.temperature[e] == 0.f ? first_max(logits, n, r.max) : coupled_token(r, noise, cut);
  if (logprob) *logprob = logprob_of(r, token);
  return token;
}

inline void sample(const SampleArgs& a, Team& team) {
  team.each(a.rows, 1, [&](int64_t r) {
    a.tokens[r] = sample_row(a.logits + r * a.stride, a.vocab, a.params, r, a.params.positions[r],
                             a.logprobs ? a.logprobs + r : nullptr);
  });
}

// The f best tokens of one row: first those that survive the filters, then the others.
inline void top_f_row(const TopFArgs& a, int64_t row, int64_t* best, float* scores) {
  std::fill(best, best + a.f, -1);
  std::fill(scores, scores + a.f, -INFINITY);
  Row r;
  Cut cut;
  if (int64_t error = open_row(a.logits + row * a.stride, a.vocab, a.params, row, r, cut)) {
    best[0] = error;
    return;
  }
  Noise noise{uint64_t(a.params.seeds[row]), uint32_t(a.params.positions[row]), a.purpose};
  bool random = a.params.temperature[row] > 0.f;
  const int64_t* exclude = a.exclude + row * a.excluded;
  int64_t count = 0, first = 0;  // tokens found, and how many before this pass
  float bar = -INFINITY;
  auto insert = [&](int64_t id, float score) {
    if (a.target_ids) id = a.target_ids[id];
    for (int64_t i = 0; i < a.excluded; ++i)
      if (exclude[i] == id) return;
    int64_t at = count < a.f ? count++ : a.f - 1;
    for (; at > first && scores[at - 1] < score; --at) best[at] = best[at - 1], scores[at] = scores[at - 1];
    best[at] = id, scores[at] = score;
    if (count == a.f) bar = scores[a.f - 1];
  };
  scan_scores(r, random ? &noise : nullptr, a.target_ids, cut, true, bar, insert);
  first = count;
  if (count < a.f) scan_scores(r, random ? &noise : nullptr, a.target_ids, cut, false, bar, insert);
}

inline void top_f(const TopFArgs& a, Team& team) {
  team.each(a.rows, 1, [&](int64_t r) { top_f_row(a, r, a.ids + r * a.f, a.scores + r * a.f); });
}

inline void noise(const NoiseArgs& a, Team& team) {
  team.each(a.rows, 1, [&](int64_t r) {
    for (int64_t i = 0; i < a.ids; i += 64) {
      u32x16 words[4];
      uint32_t t[64];
      noise64({uint64_t(a.seeds[r]), uint32_t(a.positions[r]), a.purpose}, i, words);
      for (int j = 0; j < 4; ++j) store_u32(t + 16 * j, words[j]);
      for (int64_t j = i; j < std::min(i + 64, a.ids); ++j) a.words[r * a.ids + j] = t[j - i];
    }
  });
}

}  // namespace SSD_ISA
}  // namespace ssd
