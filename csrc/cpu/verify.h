// Verification of trees: the coupled walk, and rejection sampling for chains, trees without replacement and one-hot q.
#pragma once
#include "sampling.h"
#include "ssd/tree.h"

namespace ssd {
namespace SSD_ISA {

// Replaces x by f(x), lanes at a time, and returns the sum of the results.
template <class F> SSD_INLINE double map_sum(float* x, int64_t n, F f) {
  double total = 0;
  for (int64_t i = 0; i < n; i += 1024) {
    f32x16 s = zero();
    for (int64_t j = i; j < n && j < i + 1024; j += 16) {
      int m = int(std::min<int64_t>(n - j, 16));
      f32x16 y = f(load_n(x + j, m), j, m);
      store_n(x + j, y, m);
      s = s + (m < 16 ? select((1u << m) - 1, y, zero()) : y);
    }
    total += reduce_add(s);
  }
  return total;
}
SSD_INLINE void scale(float* x, int64_t n, double by) {
  map_sum(x, n, [c = set1(float(by))](f32x16 v, int64_t, int) { return v * c; });
}

// Writes the processed distribution of one row to p. Returns 0 or an error.
inline int64_t probs_row(const float* logits, int64_t n, const SamplingParams& s, int64_t e, float* p) {
  Row r;
  Cut cut;
  if (int64_t error = open_row(logits, n, s, e, r, cut)) return error;
  if (s.temperature[e] == 0.f) {
    std::fill(p, p + n, 0.f);
    p[first_max(logits, n, r.max)] = 1.f;
    return 0;
  }
  double sum = map_sum(p, n, [&](f32x16, int64_t i, int) {
    f32x16 z = scaled(r, i);
    uint32_t keep = less(set1(cut.z), z), edge = ~(keep | less(z, set1(cut.z))) & 0xffff;
    for (; edge; edge &= edge - 1)
      if (i + __builtin_ctz(edge) <= cut.id) keep |= edge & -edge;
    return select(keep, exp(z), zero());
  });
  scale(p, n, 1 / sum);
  return 0;
}

inline void probs(const ProbsArgs& a, Team& team) {
  team.each(a.rows, 1, [&](int64_t r) {
    if (int64_t error = probs_row(a.logits + r * a.stride, a.vocab, a.params, r, a.probs + r * a.vocab))
      a.probs[r * a.vocab] = float(error);
  });
}

// Draws from p: the token with the greatest p / E. E >= w, so most tokens need no logarithm.
inline int64_t draw(const float* p, int64_t n, const Noise& noise) {
  float best = 0.f;
  int64_t token = -1;
  for (int64_t i = 0; i < n; i += 64) {
    u32x16 words[4];
    bool drawn = false;
    for (int j = 0; j < 4 && i + 16 * j < n; ++j) {
      int m16 = int(std::min<int64_t>(n - i - 16 * j, 16));
      f32x16 v = load_n(p + i + 16 * j, m16);
      uint32_t some = less(zero(), v);
      if (!some) continue;
      if (!drawn) noise64(noise, i, words), drawn = true;
      f32x16 w = open_uniform(words[j]);
      uint32_t m = some & less(set1(best * (1 - 0x1p-20f)) * w, v);
      if (!m) continue;
      float scores[16];
      store(scores, v / (zero() - log1m(w)));
      for (; m; m &= m - 1) {
        int lane = __builtin_ctz(m);
        if (scores[lane] > best) best = scores[lane], token = i + 16 * j + lane;
      }
    }
  }
  return token;
}

struct Step {
  int child;      // the accepted child, or -1
  int64_t token;  // its token, or the one that ends the walk; a negative one is an error
};

struct Walk {  // where the walk down the tree of request b stands
  int64_t b;
  int nodes, node;
  int64_t row, position;
};

inline Step coupled_step(const VerifyArgs& a, const Walk& walk, float* logprob) {
  int64_t token = sample_row(a.logits + walk.row * a.stride, a.vocab, a.params, walk.b, walk.position, logprob);
  if (token < 0) return {-1, token};
  return {find_child(a.tokens + walk.b * a.nodes, a.parents + walk.b * a.nodes, walk.nodes, walk.node, token, 0),
          token};
}

// p <- (p - q)+, normalised; p stays as it is if that sums to 0. Uses scratch memory behind q.
inline void residual(float* p, float* q, int64_t n) {
  float* r = q + n;
  double sum =
      map_sum(r, n, [&](f32x16, int64_t i, int m) { return max(load_n(p + i, m) - load_n(q + i, m), zero()); });
  if (sum > 0) std::copy(r, r + n, p), scale(p, n, 1 / sum);
}

// Sets p[x] to 0 and normalises the rest. If nothing else is left, returns false and leaves p as it is.
inline bool remove(float* p, int64_t n, int64_t x) {
  float px = p[x];
  p[x] = 0.f;
  double sum = map_sum(p, n, [](f32x16 v, int64_t, int) { return v; });
  if (!(sum > 0)) return p[x] = px, false;
  scale(p, n, 1 / sum);
  return true;
}

// Tries the children in order: x is accepted if u < p(x) / q(x), with q(x) = 1 for a deterministic proposal; otherwise
// p becomes the residual and x is removed from q. The token that ends the walk is drawn from what p has become.
inline Step rejection_step(const VerifyArgs& a, const Walk& walk, float* logprob) {
  const int64_t n = a.vocab;
  const float* logits = a.logits + walk.row * a.stride;
  float *p = float_scratch(1, 3 * n), *q = p + n;
  if (int64_t error = probs_row(logits, n, a.params, walk.b, p)) return {-1, error};
  auto next = [&](int from) {
    return find_child(a.tokens + walk.b * a.nodes, a.parents + walk.b * a.nodes, walk.nodes, walk.node, -1, from);
  };
  auto result = [&](int child, int64_t token) {
    if (logprob) *logprob = logprob_of({logits, n, max_logit(logits, n), 1.f}, token);
    return Step{child, token};
  };
  const uint64_t seed = uint64_t(a.params.seeds[walk.b]);
  const uint32_t position = uint32_t(walk.position);
  bool sampled = a.kinds[walk.b] == kSampledKind, left = true;
  int child = next(0);
  if (sampled && child >= 0) {
    const float* source = a.q + walk.row * a.q_stride;
    double sum = map_sum(q, n, [&](f32x16, int64_t i, int m) { return load_n(source + i, m); });
    if (!(std::abs(sum - 1) < 1e-3) || *std::min_element(q, q + n) < 0.f) return {-1, kNotNormal};
  }
  for (uint32_t number = 0; child >= 0 && left; child = next(child + 1), ++number) {
    int64_t x = a.tokens[walk.b * a.nodes + child];
    if (sampled && !(q[x] > 0.f)) return {-1, kNotProposed};
    float u = ssd::open_uniform(noise_word(seed, position, number, kAccept));
    if (u < p[x] / (sampled ? q[x] : 1.f)) return result(child, x);
    if (sampled) residual(p, q, n);
    left = remove(sampled ? q : p, n, x);
  }
  return result(-1, draw(p, n, {seed, position, kResidual}));
}

inline void verify(const VerifyArgs& a, Team& team) {
  team.each(a.batch, 1, [&](int64_t b) {
    int nodes = a.row_offsets[b + 1] - a.row_offsets[b] - 1, node = -1;
    int8_t* path = a.path + b * a.nodes;
    int64_t* emitted = a.emitted + b * (a.nodes + 1);
    std::fill(path, path + a.nodes, -1);
    std::fill(emitted, emitted + a.nodes + 1, -1);
    if (a.logprobs) std::fill(a.logprobs + b * (a.nodes + 1), a.logprobs + (b + 1) * (a.nodes + 1), -INFINITY);
    for (int32_t depth = 0;; ++depth) {
      Walk walk{b, nodes, node, a.row_offsets[b] + node + 1, a.params.positions[b] + depth};
      float* logprob = a.logprobs ? a.logprobs + b * (a.nodes + 1) + depth : nullptr;
      Step s = a.kinds ? rejection_step(a, walk, logprob) : coupled_step(a, walk, logprob);
      a.accepted[b] = s.token < 0 ? int32_t(s.token) : depth;
      emitted[s.token < 0 ? 0 : depth] = s.token < 0 ? walk.row : s.token;
      if (s.child < 0) break;
      path[depth] = int8_t(node = s.child);
    }
  });
}

}  // namespace SSD_ISA
}  // namespace ssd
