// CPU registration of verification.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "sampling_check.h"
#include "ssd/tree.h"

namespace {
using at::Tensor;
using Results = std::tuple<Tensor, Tensor, Tensor, Tensor>;

void check_trees(const Tensor& row_offsets, const Tensor& tokens, const Tensor& parents, int64_t rows) {
  ssd::check_dense(tokens, "tokens", at::kInt, 2);
  ssd::check_dense(parents, "parents", at::kChar, 2);
  int64_t batch = tokens.size(0), nodes = tokens.size(1);
  SSD_CHECK(nodes <= 64, "tokens: got ", nodes, " nodes a request, wanted at most 64");
  SSD_CHECK(parents.sizes() == tokens.sizes(), "parents: got shape ", parents.sizes(), ", wanted ", tokens.sizes());
  ssd::check_entries(row_offsets, "row_offsets", at::kInt, batch + 1);
  const int32_t* offset = row_offsets.const_data_ptr<int32_t>();
  SSD_CHECK(offset[0] == 0 && offset[batch] == rows, "row_offsets: got ", offset[0], " to ", offset[batch],
            ", wanted 0 to ", rows, ", the rows of logits");
  for (int64_t b = 0; b < batch; ++b) {
    int64_t n = int64_t(offset[b + 1]) - offset[b] - 1;
    SSD_CHECK(n >= 0 && n <= nodes, "row_offsets: got ", n + 1, " rows for request ", b, ", wanted 1 to ", nodes + 1);
    const int8_t* parent = parents.const_data_ptr<int8_t>() + b * nodes;
    for (int64_t i = 0; i < n; ++i)
      SSD_CHECK(parent[i] >= -1 && parent[i] < i, "parents: got ", int(parent[i]), " for node ", i, " of request ", b,
                ", wanted -1 (the root) or an earlier node");
  }
}

Results verify(const Tensor& logits, const Tensor& row_offsets, const Tensor& tokens, const Tensor& parents,
               const int8_t* kinds, const std::optional<Tensor>& q, const ssd::SamplingParams& params, bool logprobs) {
  int64_t batch = tokens.size(0), nodes = tokens.size(1);
  Tensor path = at::empty({batch, nodes}, at::kChar), emitted = at::empty({batch, nodes + 1}, at::kLong);
  Tensor accepted = at::empty({batch}, at::kInt), scores = at::empty({logprobs ? batch : 0, nodes + 1}, at::kFloat);
  ssd::VerifyArgs a{.logits = logits.const_data_ptr<float>(),
                    .stride = logits.stride(0),
                    .vocab = logits.size(1),
                    .row_offsets = row_offsets.const_data_ptr<int32_t>(),
                    .tokens = tokens.const_data_ptr<int32_t>(),
                    .parents = parents.const_data_ptr<int8_t>(),
                    .batch = batch,
                    .nodes = nodes,
                    .params = params,
                    .kinds = kinds,
                    .q = q ? q->const_data_ptr<float>() : nullptr,
                    .q_stride = q ? q->stride(0) : 0,
                    .path = path.mutable_data_ptr<int8_t>(),
                    .emitted = emitted.mutable_data_ptr<int64_t>(),
                    .logprobs = logprobs ? scores.mutable_data_ptr<float>() : nullptr,
                    .accepted = accepted.mutable_data_ptr<int32_t>()};
  ssd::pool().run([a](ssd::Team& team) { ssd::kernels().verify(a, team); }, batch);
  for (int64_t b = 0; b < batch; ++b) ssd::check_result(a.accepted[b], a.emitted[b * (nodes + 1)]);
  return {path, accepted, emitted, scores};
}

Results verify_coupled(const Tensor& logits, const Tensor& row_offsets, const Tensor& tokens, const Tensor& parents,
                       const Tensor& temperature, const Tensor& top_k, const Tensor& top_p, const Tensor& min_p,
                       const Tensor& seeds, const Tensor& positions, bool logprobs) {
  ssd::check_logits(logits);
  check_trees(row_offsets, tokens, parents, logits.size(0));
  auto params = ssd::sampling_params(temperature, top_k, top_p, min_p, seeds, positions, tokens.size(0));
  return verify(logits, row_offsets, tokens, parents, nullptr, std::nullopt, params, logprobs);
}

Results verify_rejection(const Tensor& logits, const Tensor& row_offsets, const Tensor& tokens, const Tensor& parents,
                         const Tensor& kinds, const std::optional<Tensor>& q, const Tensor& temperature,
                         const Tensor& top_k, const Tensor& top_p, const Tensor& min_p, const Tensor& seeds,
                         const Tensor& positions, bool logprobs) {
  ssd::check_logits(logits);
  check_trees(row_offsets, tokens, parents, logits.size(0));
  int64_t batch = tokens.size(0), nodes = tokens.size(1), vocab = logits.size(1);
  auto params = ssd::sampling_params(temperature, top_k, top_p, min_p, seeds, positions, batch);
  if (q) {
    ssd::check_logits(*q, "q");
    SSD_CHECK(q->sizes() == logits.sizes(), "q: got shape ", q->sizes(), ", wanted ", logits.sizes(), " as logits");
  }
  ssd::check_entries(kinds, "kinds", at::kChar, batch);
  const int8_t* kind = kinds.const_data_ptr<int8_t>();
  for (int64_t b = 0; b < batch; ++b) {
    SSD_CHECK(kind[b] == ssd::kSampledKind || kind[b] == ssd::kDeterministicKind, "kinds: got ", int(kind[b]),
              " for request ", b, ", wanted 1 (sampled) or 2 (deterministic); coupled proposals need verify_coupled");
    SSD_CHECK(kind[b] != ssd::kSampledKind || q, "q: got none for request ", b,
              ", wanted the distributions that its proposals were sampled from");
    int64_t n = row_offsets.const_data_ptr<int32_t>()[b + 1] - row_offsets.const_data_ptr<int32_t>()[b] - 1;
    for (int64_t i = 0; i < n; ++i) {
      int32_t t = tokens.const_data_ptr<int32_t>()[b * nodes + i];
      SSD_CHECK(t >= 0 && t < vocab, "tokens: got ", t, " for node ", i, " of request ", b, ", wanted 0 to ",
                vocab - 1);
    }
  }
  return verify(logits, row_offsets, tokens, parents, kind, q, params, logprobs);
}

}  // namespace

TORCH_LIBRARY_IMPL(ssd, CPU, m) {
  m.impl("verify_coupled", verify_coupled);
  m.impl("verify_rejection", verify_rejection);
}
