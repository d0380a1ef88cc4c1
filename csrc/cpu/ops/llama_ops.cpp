// A whole forward pass as one operator: the layer loop on the kept threads, barriers between the
// same kernels that the single operators run, so the bits are those of their composition.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "attention_ops.h"
#include "linear_ops.h"

namespace {
using at::Tensor;

constexpr int kPerLayer =
    12;  // attention norm, qkv, bias, o, bias, mlp norm, gate_up, bias, down, bias, q norm, k norm

struct Layer {
  ssd::RmsNormArgs attention_norm, mlp_norm;
  ssd::LinearArgs qkv, o, gate_up, down;
  ssd::RopeArgs rope;
  ssd::AttentionArgs attention;
};

std::optional<Tensor> if_any(const Tensor& t) { return t.numel() ? std::optional<Tensor>(t) : std::nullopt; }

// y may be wider than x: the result then starts at column `at`.
ssd::RmsNormArgs norm_args(const Tensor& weight, const Tensor& x, const Tensor& y, double eps, int64_t at = 0) {
  ssd::check_dense(weight, "norm", at::kFloat, 1);
  SSD_CHECK(weight.size(0) == x.size(1), "norm: got ", weight.size(0), " elements, wanted ", x.size(1));
  return {x.const_data_ptr<float>(),
          nullptr,
          weight.const_data_ptr<float>(),
          y.mutable_data_ptr<float>() + at,
          nullptr,
          x.size(0),
          x.size(1),
          y.size(1),
          float(eps)};
}

// The thread's share of n rows of width floats, row i to to(i) from from(i).
template <class To, class From>
void copy_rows(int64_t n, int64_t width, ssd::Team& team, To to, From from) {
  int64_t i0, i1;
  team.share(n, i0, i1);
  for (int64_t i = i0; i < i1; ++i) std::memcpy(to(i), from(i), width * sizeof(float));
}

// y = x W^T (+ bias) (+ y where accumulate: the residual stream)
ssd::LinearArgs layer_linear(const char* name, const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& y,
                             int64_t n, bool swiglu, bool accumulate) {
  auto a = ssd::linear_args("the input", name, x.size(0), x.size(1), w, n, if_any(bias), swiglu);
  a.x = x.const_data_ptr<float>(), a.y = y.mutable_data_ptr<float>();
  if (accumulate) a.residual = a.y;
  return a;
}

std::tuple<Tensor, Tensor> llama_forward(const Tensor& ids, const Tensor& positions, const Tensor& slots,
                                         const Tensor& row_offsets, const Tensor& prefix_lens, const Tensor& page_table,
                                         const std::optional<Tensor>& mask, const Tensor& logit_rows, Tensor k_cache,
                                         Tensor v_cache, const Tensor& embedding, at::TensorList layers,
                                         const Tensor& norm, const Tensor& lm_head, const Tensor& cos,
                                         const Tensor& sin, int64_t heads, int64_t inner_size, double eps, double scale,
                                         std::optional<int64_t> outputs, const std::optional<Tensor>& hidden_in,
                                         const std::optional<Tensor>& hidden_norm, at::IntArrayRef feature_layers) {
  ssd::check_embedding(ids, embedding);
  SSD_CHECK(k_cache.dim() == 5 && k_cache.sizes() == v_cache.sizes(), "k_cache: got shape ", k_cache.sizes(),
            ", wanted [layers, pages, page_size, Hkv, D] as v_cache, ", v_cache.sizes());
  const int64_t n_layers = k_cache.size(0), rows = ids.size(0), hidden = embedding.size(1);
  const int64_t vocab = outputs.value_or(embedding.size(0));
  SSD_CHECK(int64_t(layers.size()) == n_layers * kPerLayer, "layers: got ", layers.size(), " tensors, wanted ",
            kPerLayer, " for each of ", n_layers, " layers");
  ssd::check_dense(logit_rows, "logit_rows", at::kLong, 1);
  for (int64_t i = 0; i < logit_rows.size(0); ++i) {
    const int64_t r = logit_rows.const_data_ptr<int64_t>()[i];
    SSD_CHECK(r >= 0 && r < rows, "logit_rows: got ", r, ", wanted 0 to ", rows - 1);
  }
  for (int64_t n : feature_layers)
    SSD_CHECK(n >= 0 && n <= n_layers, "feature_layers: got ", n, ", wanted 0 to ", n_layers, " layers");
  SSD_CHECK(hidden_in.has_value() == hidden_norm.has_value(),
            "hidden_norm: wanted together with hidden, and only then");
  if (hidden_in) {
    ssd::check_dense(*hidden_in, "hidden", at::kFloat, 2);
    SSD_CHECK(hidden_in->size(0) == rows && hidden_in->size(1) == hidden, "hidden: got shape ", hidden_in->sizes(),
              ", wanted [", rows, ", ", hidden, "]");
    SSD_CHECK(n_layers, "hidden: wanted a model with layers");
  }
  const int64_t kv_heads = k_cache.size(3), d = k_cache.size(4), wide = (heads + 2 * kv_heads) * d,
                n_logits = logit_rows.size(0);
  const int64_t inner_padded = ssd::panels(inner_size) * ssd::kPanel;
  auto fresh = [](at::IntArrayRef shape) { return at::empty(shape, at::kFloat); };
  Tensor x = fresh({rows, hidden}), normed = fresh({rows, hidden}), qkv = fresh({rows, wide}),
         q = fresh({rows, heads, d});
  Tensor mixed = fresh({rows, heads * d}), inner = fresh({rows, inner_padded});
  Tensor last = fresh({n_logits, hidden}), last_normed = fresh({n_logits, hidden}), logits = fresh({n_logits, vocab});
  const int64_t n_features = feature_layers.size();
  Tensor features = fresh({rows, n_features * hidden});
  Tensor embedded = x, entering = normed;  // of a feature draft: embeddings, and both halves of the first layer's input
  if (hidden_in) embedded = fresh({rows, hidden}), entering = fresh({rows, 2 * hidden});
  const ssd::RowScratch scratch(std::max(rows, n_logits), std::max({entering.size(1), heads * d, inner_padded}));

  std::vector<Layer> todo;
  todo.reserve(n_layers);
  for (int64_t i = 0; i < n_layers; ++i) {
    const Tensor* w = &layers[i * kPerLayer];
    const Tensor k = k_cache[i], v = v_cache[i];
    Layer l;
    const Tensor& input = i ? normed : entering;
    l.attention_norm = norm_args(w[0], i ? x : embedded, input, eps);
    l.qkv = layer_linear("qkv", input, w[1], w[2], qkv, wide, false, false);
    l.rope = ssd::rope_args(qkv, cos, sin, positions, slots, k, v, q, if_any(w[10]), if_any(w[11]), eps);
    l.attention = ssd::attention_args(q, k, v, page_table, prefix_lens, row_offsets, mask, scale, 0);
    l.attention.out = mixed.mutable_data_ptr();
    l.o = layer_linear("o", mixed, w[3], w[4], x, hidden, false, true);
    l.mlp_norm = norm_args(w[5], x, normed, eps);
    l.gate_up = layer_linear("gate_up", normed, w[6], w[7], inner, 2 * inner_padded, true, false);
    l.down = layer_linear("down", inner, w[8], w[9], x, hidden, false, true);
    for (auto* a : {&l.qkv, &l.o, &l.gate_up, &l.down}) scratch.lend(*a);
    todo.push_back(l);
  }
  std::optional<ssd::RmsNormArgs> hidden_args;
  if (hidden_in) hidden_args = norm_args(*hidden_norm, *hidden_in, entering, eps, hidden);
  const auto final_norm = norm_args(norm, last, last_normed, eps);
  auto head =
      layer_linear("lm_head", last_normed, lm_head, Tensor(at::empty({0}, at::kFloat)), logits, vocab, false, false);
  scratch.lend(head);

  auto& pool = ssd::pool();
  const auto& kernel = ssd::kernels();
  const auto plan = n_layers && rows ? ssd::plan_attention(todo[0].attention, pool.size()) : ssd::AttentionPlan{};
  Tensor partials = fresh({plan.partials * (d + 2)});
  float* parts = partials.mutable_data_ptr<float>();
  float* stream = x.mutable_data_ptr<float>();
  auto row = [&](const Tensor& t) {
    return [p = t.mutable_data_ptr<float>(), n = t.size(1)](int64_t i) { return p + i * n; };
  };
  auto keep = [&](int64_t done, ssd::Team& team) {  // the residual stream after that many layers
    for (int64_t f = 0; f < n_features; ++f)
      if (feature_layers[f] == done)
        copy_rows(rows, hidden, team, [&](int64_t i) { return row(features)(i) + f * hidden; }, row(x));
  };
  pool.run([&](ssd::Team& team) {
    ssd::embed(ids, embedding, embedded.mutable_data_ptr<float>(), team);
    if (hidden_in) {
      copy_rows(rows, hidden, team, row(x), [&](int64_t i) { return hidden_in->const_data_ptr<float>() + i * hidden; });
      kernel.rms_norm(*hidden_args, team);
    }
    for (int64_t i = 0; i < n_layers && rows; ++i) {
      const Layer& l = todo[i];
      team.barrier(), kernel.rms_norm(l.attention_norm, team), keep(i, team);
      team.barrier(), kernel.linear(l.qkv, team);
      team.barrier(), kernel.rope_append(l.rope, team);
      team.barrier(), kernel.attention(l.attention, plan, parts, team);
      team.barrier(), kernel.linear(l.o, team);
      team.barrier(), kernel.rms_norm(l.mlp_norm, team);
      team.barrier(), kernel.linear(l.gate_up, team);
      team.barrier(), kernel.linear(l.down, team);
    }
    team.barrier(), keep(n_layers, team);
    copy_rows(n_logits, hidden, team, row(last),
              [&](int64_t i) { return stream + logit_rows.const_data_ptr<int64_t>()[i] * hidden; });
    team.barrier(), kernel.rms_norm(final_norm, team);
    team.barrier(), kernel.linear(head, team);
  });
  return {logits, features};
}

}  // namespace

TORCH_LIBRARY_IMPL(ssd, CPU, m) { m.impl("llama_forward", llama_forward); }
