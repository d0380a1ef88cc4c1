// A whole forward pass as one operator: the layer loop runs on the pool's threads, over the same kernels that the
// single operators run, so the bits are those of their composition.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "attention_ops.h"
#include "linear_ops.h"

namespace {
using at::Tensor;

// The tensors of a layer, in the order of `layers`; empty where the model has none.
enum Weight {
  kAttentionNorm,
  kQkv,
  kQkvBias,
  kO,
  kOBias,
  kMlpNorm,
  kGateUp,
  kGateUpBias,
  kDown,
  kDownBias,
  kQNorm,
  kKNorm,
  kPerLayer
};

// The operator's arguments.
struct Call {
  const Tensor &ids, &positions, &slots, &row_offsets, &prefix_lens, &page_table;
  const std::optional<Tensor>& mask;
  const Tensor &logit_rows, &k_cache, &v_cache, &embedding;
  at::TensorList layers;
  const Tensor &norm, &lm_head, &cos, &sin;
  int64_t heads, inner_size;
  double eps, scale;
  std::optional<int64_t> outputs;
  const std::optional<Tensor>&hidden_in, &hidden_norm;
  at::IntArrayRef feature_layers;

  int64_t rows() const { return ids.size(0); }
  int64_t hidden() const { return embedding.size(1); }
  int64_t n_layers() const { return k_cache.size(0); }
  int64_t n_logits() const { return logit_rows.size(0); }
  int64_t kv_heads() const { return k_cache.size(3); }
  int64_t head_dim() const { return k_cache.size(4); }
  int64_t vocab() const { return outputs.value_or(embedding.size(0)); }
  int64_t inner_padded() const { return ssd::panels(inner_size) * ssd::kPanel; }
};

void check(const Call& c) {
  ssd::check_embedding(c.ids, c.embedding);
  SSD_CHECK(c.k_cache.dim() == 5 && c.k_cache.sizes() == c.v_cache.sizes(), "k_cache: got shape ", c.k_cache.sizes(),
            ", wanted [layers, pages, page_size, Hkv, D] as v_cache, ", c.v_cache.sizes());
  const int64_t n_layers = c.n_layers(), rows = c.rows(), hidden = c.hidden();
  SSD_CHECK(int64_t(c.layers.size()) == n_layers * kPerLayer, "layers: got ", c.layers.size(), " tensors, wanted ",
            int(kPerLayer), " for each of ", n_layers, " layers");
  ssd::check_dense(c.logit_rows, "logit_rows", at::kLong, 1);
  for (int64_t i = 0; i < c.n_logits(); ++i) {
    const int64_t r = c.logit_rows.const_data_ptr<int64_t>()[i];
    SSD_CHECK(r >= 0 && r < rows, "logit_rows: got ", r, ", wanted 0 to ", rows - 1);
  }
  for (int64_t n : c.feature_layers)
    SSD_CHECK(n >= 0 && n <= n_layers, "feature_layers: got ", n, ", wanted 0 to ", n_layers, " layers");
  SSD_CHECK(c.hidden_in.has_value() == c.hidden_norm.has_value(), "hidden_norm: got ", c.hidden_norm ? "one" : "none",
            ", wanted one if and only if hidden is given");
  if (!c.hidden_in) return;
  ssd::check_dense(*c.hidden_in, "hidden", at::kFloat, 2);
  SSD_CHECK(c.hidden_in->size(0) == rows && c.hidden_in->size(1) == hidden, "hidden: got shape ", c.hidden_in->sizes(),
            ", wanted [", rows, ", ", hidden, "]");
  SSD_CHECK(n_layers, "hidden: got a model without layers, wanted one that hidden can enter");
}

Tensor fresh(at::IntArrayRef shape) { return at::empty(shape, at::kFloat); }

// Intermediate results, which all layers share.
struct Buffers {
  Tensor x;             // [rows, hidden] the residual stream
  Tensor normed;        // [rows, hidden]
  Tensor qkv, q;        // [rows, (heads + 2 kv_heads) d], [rows, heads, d]
  Tensor mixed, inner;  // [rows, heads d] out of attention, [rows, inner_padded] between gate_up and down
  Tensor last, last_normed;  // [n_logits, hidden]
  Tensor logits, features;
  Tensor embedded, entering;  // for a feature draft: embeddings, and both halves of the first layer's input
  ssd::RowScratch scratch;

  explicit Buffers(const Call& c)
      : x(fresh({c.rows(), c.hidden()})),
        normed(fresh({c.rows(), c.hidden()})),
        qkv(fresh({c.rows(), (c.heads + 2 * c.kv_heads()) * c.head_dim()})),
        q(fresh({c.rows(), c.heads, c.head_dim()})),
        mixed(fresh({c.rows(), c.heads * c.head_dim()})),
        inner(fresh({c.rows(), c.inner_padded()})),
        last(fresh({c.n_logits(), c.hidden()})),
        last_normed(fresh({c.n_logits(), c.hidden()})),
        logits(fresh({c.n_logits(), c.vocab()})),
        features(fresh({c.rows(), int64_t(c.feature_layers.size()) * c.hidden()})),
        embedded(c.hidden_in ? fresh({c.rows(), c.hidden()}) : x),
        entering(c.hidden_in ? fresh({c.rows(), 2 * c.hidden()}) : normed),
        scratch(std::max(c.rows(), c.n_logits()),
                std::max({entering.size(1), c.heads * c.head_dim(), c.inner_padded()})) {}
};

std::optional<Tensor> if_any(const Tensor& t) { return t.numel() ? std::optional<Tensor>(t) : std::nullopt; }

// y may be wider than x: the result then starts at `column`.
ssd::RmsNormArgs norm_args(const Tensor& weight, const Tensor& x, const Tensor& y, double eps, int64_t column = 0) {
  ssd::check_dense(weight, "norm", at::kFloat, 1);
  SSD_CHECK(weight.size(0) == x.size(1), "norm: got ", weight.size(0), " elements, wanted ", x.size(1));
  return {.x = x.const_data_ptr<float>(),
          .residual = nullptr,
          .weight = weight.const_data_ptr<float>(),
          .y = y.mutable_data_ptr<float>() + column,
          .sum = nullptr,
          .rows = x.size(0),
          .n = x.size(1),
          .y_stride = y.size(1),
          .eps = float(eps)};
}

// y = x W^T (+ bias) (+ y where accumulate: the residual stream)
ssd::LinearArgs layer_linear(const Buffers& b, const char* name, const Tensor& x, const Tensor& w,
                             const std::optional<Tensor>& bias, const Tensor& y, int64_t n, bool swiglu,
                             bool accumulate) {
  auto a = ssd::linear_args("the input", name, x.size(0), x.size(1), w, n, bias, swiglu);
  a.x = x.const_data_ptr<float>();
  a.y = y.mutable_data_ptr<float>();
  if (accumulate) a.residual = a.y;
  b.scratch.lend(a);
  return a;
}

struct Layer {  // the kernels' arguments, in the order in which they run
  ssd::RmsNormArgs attention_norm;
  ssd::LinearArgs qkv;
  ssd::RopeArgs rope;
  ssd::AttentionArgs attention;
  ssd::LinearArgs o;
  ssd::RmsNormArgs mlp_norm;
  ssd::LinearArgs gate_up, down;
};

Layer layer_args(const Call& c, const Buffers& b, int64_t i) {
  const Tensor* w = &c.layers[i * kPerLayer];
  const Tensor k = c.k_cache[i], v = c.v_cache[i];
  const Tensor& input = i ? b.normed : b.entering;
  Layer l;
  l.attention_norm = norm_args(w[kAttentionNorm], i ? b.x : b.embedded, input, c.eps);
  l.qkv = layer_linear(b, "qkv", input, w[kQkv], if_any(w[kQkvBias]), b.qkv, b.qkv.size(1), false, false);
  l.rope =
      ssd::rope_args(b.qkv, c.cos, c.sin, c.positions, c.slots, k, v, b.q, if_any(w[kQNorm]), if_any(w[kKNorm]), c.eps);
  l.attention = ssd::attention_args(b.q, k, v, c.page_table, c.prefix_lens, c.row_offsets, c.mask, c.scale, 0);
  l.attention.out = b.mixed.mutable_data_ptr();
  l.o = layer_linear(b, "o", b.mixed, w[kO], if_any(w[kOBias]), b.x, c.hidden(), false, true);
  l.mlp_norm = norm_args(w[kMlpNorm], b.x, b.normed, c.eps);
  l.gate_up = layer_linear(b, "gate_up", b.normed, w[kGateUp], if_any(w[kGateUpBias]), b.inner, 2 * c.inner_padded(),
                           true, false);
  l.down = layer_linear(b, "down", b.inner, w[kDown], if_any(w[kDownBias]), b.x, c.hidden(), false, true);
  return l;
}

struct Copy {  // rows of `width` floats: row rows[i] (or i) of `from` to row i of `to`, whose rows are `stride` apart
  float* to;
  const float* from;
  const int64_t* rows;
  int64_t n, width, stride;
  void operator()(ssd::Team& team) const {
    team.each(n, ssd::items_of(8 * width), [this](int64_t i) {
      std::memcpy(to + i * stride, from + (rows ? rows[i] : i) * width, width * sizeof(float));
    });
  }
};

struct Pass {  // all that the threads need, checked; a late one reads it when the call has returned
  ssd::EmbedArgs embedding;
  std::optional<Copy> hidden;
  std::optional<ssd::RmsNormArgs> hidden_norm;
  std::vector<Layer> layers;
  std::vector<std::pair<int64_t, Copy>> features;  // how many layers go before, and what is kept
  Copy last;
  ssd::RmsNormArgs final_norm;
  ssd::LinearArgs head;
  ssd::AttentionPlan plan;
  float* partials;
};

Pass pass_args(const Call& c, const Buffers& b) {
  const int64_t hidden = c.hidden();
  float* x = b.x.mutable_data_ptr<float>();
  Pass p;
  p.embedding = ssd::embed_args(c.ids, c.embedding, b.embedded);
  if (c.hidden_in) {
    p.hidden = Copy{x, c.hidden_in->const_data_ptr<float>(), nullptr, c.rows(), hidden, hidden};
    p.hidden_norm = norm_args(*c.hidden_norm, *c.hidden_in, b.entering, c.eps, hidden);
  }
  p.layers.reserve(c.n_layers());
  for (int64_t i = 0; i < c.n_layers(); ++i) p.layers.push_back(layer_args(c, b, i));
  for (size_t f = 0; f < c.feature_layers.size(); ++f)
    p.features.emplace_back(c.feature_layers[f], Copy{b.features.mutable_data_ptr<float>() + f * hidden, x, nullptr,
                                                      c.rows(), hidden, b.features.size(1)});
  p.last = {b.last.mutable_data_ptr<float>(), x, c.logit_rows.const_data_ptr<int64_t>(), c.n_logits(), hidden, hidden};
  p.final_norm = norm_args(c.norm, b.last, b.last_normed, c.eps);
  p.head = layer_linear(b, "lm_head", b.last_normed, c.lm_head, std::nullopt, b.logits, c.vocab(), false, false);
  return p;
}

// What each thread of the pool runs.
void run(const Pass& p, ssd::Team& team) {
  const auto& kernel = ssd::kernels();
  auto keep_features = [&](int64_t done) {
    for (auto& [layers, copy] : p.features)
      if (layers == done) copy(team);
  };
  ssd::embed(p.embedding, team);
  if (p.hidden) {
    (*p.hidden)(team);
    kernel.rms_norm(*p.hidden_norm, team);
  }
  for (size_t i = 0; i < p.layers.size(); ++i) {
    const Layer& l = p.layers[i];
    kernel.rms_norm(l.attention_norm, team);
    keep_features(i);
    kernel.linear(l.qkv, team);
    kernel.rope_append(l.rope, team);
    kernel.attention(l.attention, p.plan, p.partials, team);
    kernel.linear(l.o, team);
    kernel.rms_norm(l.mlp_norm, team);
    kernel.linear(l.gate_up, team);
    kernel.linear(l.down, team);
  }
  keep_features(p.layers.size());
  p.last(team);
  kernel.rms_norm(p.final_norm, team);
  kernel.linear(p.head, team);
}

std::tuple<Tensor, Tensor> llama_forward(const Tensor& ids, const Tensor& positions, const Tensor& slots,
                                         const Tensor& row_offsets, const Tensor& prefix_lens, const Tensor& page_table,
                                         const std::optional<Tensor>& mask, const Tensor& logit_rows, Tensor k_cache,
                                         Tensor v_cache, const Tensor& embedding, at::TensorList layers,
                                         const Tensor& norm, const Tensor& lm_head, const Tensor& cos,
                                         const Tensor& sin, int64_t heads, int64_t inner_size, double eps, double scale,
                                         std::optional<int64_t> outputs, const std::optional<Tensor>& hidden_in,
                                         const std::optional<Tensor>& hidden_norm, at::IntArrayRef feature_layers) {
  const Call c{ids,     positions,  slots,     row_offsets, prefix_lens, page_table, mask,        logit_rows,
               k_cache, v_cache,    embedding, layers,      norm,        lm_head,    cos,         sin,
               heads,   inner_size, eps,       scale,       outputs,     hidden_in,  hidden_norm, feature_layers};
  check(c);
  const Buffers b(c);
  auto& pool = ssd::pool();
  Pass p = pass_args(c, b);
  if (c.rows() && c.n_layers()) p.plan = ssd::plan_attention(p.layers[0].attention, pool.size());
  const Tensor partials = fresh({p.plan.partials * (c.head_dim() + 2)});
  p.partials = partials.mutable_data_ptr<float>();
  pool.run([p = std::move(p)](ssd::Team& team) { run(p, team); });
  return {b.logits, b.features};
}

}  // namespace

TORCH_LIBRARY_IMPL(ssd, CPU, m) { m.impl("llama_forward", llama_forward); }
