// A whole forward pass as one operator: the layer loop on the kept threads, barriers between the
// same kernels that the single operators run, so the bits are those of their composition.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "cache_ops.h"
#include "linear_ops.h"

namespace {
using at::Tensor;

constexpr int kPerLayer = 10;  // attention norm, qkv, bias, o, bias, mlp norm, gate_up, bias, down, bias

struct Layer {
  ssd::RmsNormArgs attention_norm, mlp_norm;
  ssd::LinearArgs qkv, o, gate_up, down;
  ssd::RopeArgs rope;
  ssd::AttentionArgs attention;
};

std::optional<Tensor> bias_of(const Tensor& t) { return t.numel() ? std::optional<Tensor>(t) : std::nullopt; }

ssd::RmsNormArgs norm_args(const Tensor& weight, const Tensor& x, const Tensor& y, double eps) {
  ssd::check_dense(weight, "norm", at::kFloat, 1);
  SSD_CHECK(weight.size(0) == x.size(1), "norm: got ", weight.size(0), " elements, wanted ", x.size(1));
  return {x.const_data_ptr<float>(), nullptr, weight.const_data_ptr<float>(), y.mutable_data_ptr<float>(), nullptr,
          x.size(0), x.size(1), float(eps)};
}

// y = x W^T (+ bias) (+ y where accumulate: the residual stream)
ssd::LinearArgs layer_linear(const char* name, const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& y,
                             int64_t n, bool swiglu, bool accumulate) {
  auto a = ssd::linear_args("the input", name, x.size(0), x.size(1), w, n, bias_of(bias), swiglu);
  a.x = x.const_data_ptr<float>(), a.y = y.mutable_data_ptr<float>();
  if (accumulate) a.residual = a.y;
  return a;
}

Tensor llama_forward(const Tensor& ids, const Tensor& positions, const Tensor& slots, const Tensor& row_offsets,
                     const Tensor& prefix_lens, const Tensor& page_table, const std::optional<Tensor>& mask,
                     const Tensor& logit_rows, Tensor k_cache, Tensor v_cache, const Tensor& embedding,
                     at::TensorList layers, const Tensor& norm, const Tensor& lm_head, const Tensor& cos,
                     const Tensor& sin, int64_t heads, int64_t inner_size, double eps, double scale) {
  ssd::check_embedding(ids, embedding);
  SSD_CHECK(k_cache.dim() == 5 && k_cache.sizes() == v_cache.sizes(), "k_cache: got shape ", k_cache.sizes(),
            ", wanted [layers, pages, page_size, Hkv, D] as v_cache, ", v_cache.sizes());
  const int64_t n_layers = k_cache.size(0), rows = ids.size(0), hidden = embedding.size(1), vocab = embedding.size(0);
  SSD_CHECK(int64_t(layers.size()) == n_layers * kPerLayer, "layers: got ", layers.size(), " tensors, wanted ", kPerLayer,
            " for each of ", n_layers, " layers");
  ssd::check_dense(logit_rows, "logit_rows", at::kLong, 1);
  for (int64_t i = 0; i < logit_rows.size(0); ++i) {
    const int64_t r = logit_rows.const_data_ptr<int64_t>()[i];
    SSD_CHECK(r >= 0 && r < rows, "logit_rows: got ", r, ", wanted 0 to ", rows - 1);
  }
  const int64_t kv_heads = k_cache.size(3), d = k_cache.size(4), wide = (heads + 2 * kv_heads) * d, n_logits = logit_rows.size(0);
  const int64_t inner_padded = ssd::panels(inner_size) * ssd::kPanel;
  auto fresh = [](at::IntArrayRef shape) { return at::empty(shape, at::kFloat); };
  Tensor x = fresh({rows, hidden}), normed = fresh({rows, hidden}), qkv = fresh({rows, wide}), q = fresh({rows, heads, d});
  Tensor mixed = fresh({rows, heads * d}), inner = fresh({rows, inner_padded});
  Tensor last = fresh({n_logits, hidden}), last_normed = fresh({n_logits, hidden}), logits = fresh({n_logits, vocab});
  const int64_t groups = std::max(rows, n_logits) * ssd::groups(std::max({hidden, heads * d, inner_padded}));
  Tensor xq = at::empty({groups * ssd::kGroup}, at::kChar);
  Tensor xs = at::empty({groups * int64_t(sizeof(ssd::RowGroup))}, at::kByte);

  std::vector<Layer> todo;
  todo.reserve(n_layers);
  for (int64_t i = 0; i < n_layers; ++i) {
    const Tensor* w = &layers[i * kPerLayer];
    const Tensor k = k_cache[i], v = v_cache[i];
    Layer l;
    l.attention_norm = norm_args(w[0], x, normed, eps);
    l.qkv = layer_linear("qkv", normed, w[1], w[2], qkv, wide, false, false);
    l.rope = ssd::rope_args(qkv, cos, sin, positions, slots, k, v, q);
    l.attention = ssd::attention_args(q, k, v, page_table, prefix_lens, row_offsets, mask, scale, 0);
    l.attention.out = mixed.mutable_data_ptr();
    l.o = layer_linear("o", mixed, w[3], w[4], x, hidden, false, true);
    l.mlp_norm = norm_args(w[5], x, normed, eps);
    l.gate_up = layer_linear("gate_up", normed, w[6], w[7], inner, 2 * inner_padded, true, false);
    l.down = layer_linear("down", inner, w[8], w[9], x, hidden, false, true);
    for (auto* a : {&l.qkv, &l.o, &l.gate_up, &l.down})
      a->xq = xq.mutable_data_ptr<int8_t>(), a->xs = (ssd::RowGroup*)xs.mutable_data_ptr();
    todo.push_back(l);
  }
  const auto final_norm = norm_args(norm, last, last_normed, eps);
  auto head = layer_linear("lm_head", last_normed, lm_head, Tensor(at::empty({0}, at::kFloat)), logits, vocab, false, false);
  head.xq = xq.mutable_data_ptr<int8_t>(), head.xs = (ssd::RowGroup*)xs.mutable_data_ptr();

  auto& pool = ssd::pool();
  const auto& kernel = ssd::kernels();
  const auto plan = n_layers && rows ? ssd::plan_attention(todo[0].attention, pool.size()) : ssd::AttentionPlan{};
  Tensor partials = fresh({plan.partials * (d + 2)});
  float* parts = partials.mutable_data_ptr<float>();
  pool.run([&](ssd::Team& team) {
    ssd::embed(ids, embedding, x.mutable_data_ptr<float>(), team);
    for (const Layer& l : todo) {
      if (rows == 0) break;
      team.barrier(), kernel.rms_norm(l.attention_norm, team);
      team.barrier(), kernel.linear(l.qkv, team);
      team.barrier(), kernel.rope_append(l.rope, team);
      team.barrier(), kernel.attention(l.attention, plan, parts, team);
      team.barrier(), kernel.linear(l.o, team);
      team.barrier(), kernel.rms_norm(l.mlp_norm, team);
      team.barrier(), kernel.linear(l.gate_up, team);
      team.barrier(), kernel.linear(l.down, team);
    }
    team.barrier();
    int64_t i0, i1;
    team.share(n_logits, i0, i1);
    for (int64_t i = i0; i < i1; ++i)
      std::memcpy(last.mutable_data_ptr<float>() + i * hidden,
                  x.const_data_ptr<float>() + logit_rows.const_data_ptr<int64_t>()[i] * hidden, hidden * sizeof(float));
    team.barrier(), kernel.rms_norm(final_norm, team);
    team.barrier(), kernel.linear(head, team);
  });
  return logits;
}

}  // namespace

TORCH_LIBRARY_IMPL(ssd, CPU, m) { m.impl("llama_forward", llama_forward); }
