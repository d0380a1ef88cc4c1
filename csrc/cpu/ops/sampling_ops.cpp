// CPU registration of sampling.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>

#include "check.h"
#include "cpu/kernels.h"
#include "sampling_check.h"
#include "ssd/philox.h"

namespace {
using at::Tensor;

constexpr int64_t kAlone = 1 << 17;  // logits that one thread reads in the time that waking others takes
constexpr int64_t kNoiseCost = 8;    // cost of a logit with noise, in logits without

std::tuple<Tensor, Tensor> sample(const Tensor& logits, const Tensor& temperature, const Tensor& top_k,
                                  const Tensor& top_p, const Tensor& min_p, const Tensor& seeds,
                                  const Tensor& positions, bool logprobs) {
  ssd::check_logits(logits);
  int64_t rows = logits.size(0);
  auto params = ssd::sampling_params(temperature, top_k, top_p, min_p, seeds, positions, rows);
  Tensor tokens = at::empty({rows}, at::kLong), scores = at::empty({logprobs ? rows : 0}, at::kFloat);
  ssd::SampleArgs a{.logits = logits.const_data_ptr<float>(),
                    .stride = logits.stride(0),
                    .rows = rows,
                    .vocab = logits.size(1),
                    .params = params,
                    .tokens = tokens.mutable_data_ptr<int64_t>(),
                    .logprobs = logprobs ? scores.mutable_data_ptr<float>() : nullptr};
  ssd::pool().run([a](ssd::Team& team) { ssd::kernels().sample(a, team); }, rows);
  for (int64_t r = 0; r < rows; ++r) ssd::check_result(a.tokens[r], r);
  return {tokens, scores};
}

void check_purpose(int64_t purpose) {
  SSD_CHECK(purpose >= 0 && purpose <= ssd::kProposal, "purpose: got ", purpose, ", wanted 0 to ", int(ssd::kProposal));
}

std::tuple<Tensor, Tensor> top_f(const Tensor& logits, const Tensor& temperature, const Tensor& top_k,
                                 const Tensor& top_p, const Tensor& min_p, const Tensor& seeds, const Tensor& positions,
                                 int64_t f, const std::optional<Tensor>& exclude,
                                 const std::optional<Tensor>& target_ids, int64_t purpose) {
  ssd::check_logits(logits);
  int64_t rows = logits.size(0), vocab = logits.size(1);
  auto params = ssd::sampling_params(temperature, top_k, top_p, min_p, seeds, positions, rows);
  SSD_CHECK(f > 0 && f <= 1024, "f: got ", f, ", wanted 1 to 1024");
  check_purpose(purpose);
  if (exclude) {
    ssd::check_dense(*exclude, "exclude", at::kLong, 2);
    SSD_CHECK(exclude->size(0) == rows, "exclude: got ", exclude->size(0), " rows, wanted ", rows);
  }
  if (target_ids) {
    ssd::check_entries(*target_ids, "target_ids", at::kLong, vocab);
    uint64_t any = 0;  // the bits of all ids, in one vector loop: every step of a draft checks them
    const int64_t* id = target_ids->const_data_ptr<int64_t>();
    for (int64_t i = 0; i < vocab; ++i) any |= id[i];
    if (any >> 31) ssd::check_values<int64_t>(*target_ids, "target_ids", "0 to 2^31 - 1", ssd::is_index);
  }
  Tensor ids = at::empty({rows, f}, at::kLong), scores = at::empty({rows, f}, at::kFloat);
  ssd::TopFArgs a{.logits = logits.const_data_ptr<float>(),
                  .stride = logits.stride(0),
                  .rows = rows,
                  .vocab = vocab,
                  .params = params,
                  .target_ids = target_ids ? target_ids->const_data_ptr<int64_t>() : nullptr,
                  .exclude = exclude ? exclude->const_data_ptr<int64_t>() : nullptr,
                  .excluded = exclude ? exclude->size(1) : 0,
                  .f = f,
                  .purpose = uint32_t(purpose),
                  .ids = ids.mutable_data_ptr<int64_t>(),
                  .scores = scores.mutable_data_ptr<float>()};
  const float* t = temperature.const_data_ptr<float>();
  const int64_t work = rows * vocab * (std::any_of(t, t + rows, [](float x) { return x > 0; }) ? kNoiseCost : 1);
  ssd::pool().run([a](ssd::Team& team) { ssd::kernels().top_f(a, team); }, work > kAlone ? rows : 1);
  for (int64_t r = 0; r < rows; ++r) ssd::check_result(a.ids[r * f], r);
  return {ids, scores};
}

Tensor probs(const Tensor& logits, const Tensor& temperature, const Tensor& top_k, const Tensor& top_p,
             const Tensor& min_p) {
  ssd::check_logits(logits);
  int64_t rows = logits.size(0), vocab = logits.size(1);
  Tensor p = at::empty({rows, vocab}, at::kFloat);
  ssd::ProbsArgs a{.logits = logits.const_data_ptr<float>(),
                   .stride = logits.stride(0),
                   .rows = rows,
                   .vocab = vocab,
                   .params = ssd::filter_params(temperature, top_k, top_p, min_p, rows),
                   .probs = p.mutable_data_ptr<float>()};
  ssd::pool().run([a](ssd::Team& team) { ssd::kernels().probs(a, team); }, rows);
  for (int64_t r = 0; r < rows; ++r) ssd::check_result(std::min<int64_t>(a.probs[r * vocab], 0), r);
  return p;
}

Tensor noise_words(const Tensor& seeds, const Tensor& positions, int64_t ids, int64_t purpose) {
  ssd::check_dense(seeds, "seeds", at::kLong, 1);
  ssd::check_positions(positions, seeds.size(0));
  SSD_CHECK(ids >= 0 && ids < (int64_t(1) << 32), "ids: got ", ids, ", wanted 0 to 2^32 - 1");
  check_purpose(purpose);
  Tensor words = at::empty({seeds.size(0), ids}, at::kLong);
  ssd::NoiseArgs a{.seeds = seeds.const_data_ptr<int64_t>(),
                   .positions = positions.const_data_ptr<int64_t>(),
                   .rows = seeds.size(0),
                   .ids = ids,
                   .purpose = uint32_t(purpose),
                   .words = words.mutable_data_ptr<int64_t>()};
  ssd::pool().run([a](ssd::Team& team) { ssd::kernels().noise(a, team); });
  return words;
}

std::vector<int64_t> philox(at::IntArrayRef c, at::IntArrayRef k) {
  SSD_CHECK(c.size() == 4 && k.size() == 2, "counter and key: got ", c.size(), " and ", k.size(),
            " words, wanted 4 and 2");
  auto r = ssd::philox4x32_10(c[0], c[1], c[2], c[3], k[0], k[1]);
  return {r.w[0], r.w[1], r.w[2], r.w[3]};
}

}  // namespace

TORCH_LIBRARY_IMPL(ssd, CPU, m) {
  m.impl("sample", sample);
  m.impl("top_f", top_f);
  m.impl("probs", probs);
  m.impl("noise_words", noise_words);
}
TORCH_LIBRARY_IMPL(ssd, CompositeExplicitAutograd, m) { m.impl("philox", philox); }
