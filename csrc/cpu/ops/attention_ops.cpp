// CPU registration of rope_append and tree_attention.
#include "attention_ops.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

namespace ssd {
using at::Tensor;

RopeArgs rope_args(const Tensor& qkv, const Tensor& cos, const Tensor& sin, const Tensor& positions,
                   const Tensor& slots, const Tensor& k, const Tensor& v, const Tensor& q,
                   const std::optional<Tensor>& q_norm, const std::optional<Tensor>& k_norm, double eps) {
  check_dense(positions, "positions", at::kInt, 1);
  check_dense(slots, "slots", at::kLong, 1);
  check_dense(cos, "cos", at::kFloat, 2);
  check_dense(sin, "sin", at::kFloat, 2);
  const int64_t rows = qkv.size(0), d = k.size(3), page_size = k.size(1);
  SSD_CHECK(d % 2 == 0, "k_cache: got head_dim ", d, ", wanted an even number");
  SSD_CHECK(cos.size(1) == d / 2, "cos: got ", cos.size(1), " columns, wanted head_dim / 2 = ", d / 2);
  SSD_CHECK(sin.sizes() == cos.sizes(), "sin: got shape ", sin.sizes(), ", wanted that of cos, ", cos.sizes());
  SSD_CHECK(positions.size(0) == rows, "positions: got ", positions.size(0), " elements, wanted ", rows);
  SSD_CHECK(slots.size(0) == rows, "slots: got ", slots.size(0), " elements, wanted ", rows);
  auto norm = [&](const std::optional<Tensor>& weight, const char* name) -> const float* {
    if (!weight) return nullptr;
    check_dense(*weight, name, at::kFloat, 1);
    SSD_CHECK(weight->size(0) == d, name, ": got ", weight->size(0), " elements, wanted head_dim, ", d);
    SSD_CHECK(d <= kMaxNormedHead, name, ": got head_dim ", d, ", wanted at most ", kMaxNormedHead);
    return weight->const_data_ptr<float>();
  };
  const int32_t* p = positions.const_data_ptr<int32_t>();
  const int64_t* s = slots.const_data_ptr<int64_t>();
  for (int64_t r = 0; r < rows; ++r) {
    SSD_CHECK(p[r] >= 0 && p[r] < cos.size(0), "positions: got ", p[r], " in row ", r, ", wanted 0 to ",
              cos.size(0) - 1);
    SSD_CHECK(s[r] >= -1 && s[r] < k.size(0) * page_size, "slots: got ", s[r], " in row ", r, ", wanted -1 to ",
              k.size(0) * page_size - 1);
  }
  return {.qkv = qkv.const_data_ptr<float>(),
          .cos = cos.const_data_ptr<float>(),
          .sin = sin.const_data_ptr<float>(),
          .positions = p,
          .slots = s,
          .q = q.mutable_data_ptr<float>(),
          .k = k.mutable_data_ptr(),
          .v = v.mutable_data_ptr(),
          .k_page = k.stride(0),
          .k_slot = k.stride(1),
          .k_head = k.stride(2),
          .v_page = v.stride(0),
          .v_slot = v.stride(1),
          .v_head = v.stride(2),
          .rows = rows,
          .heads = q.size(1),
          .kv_heads = k.size(2),
          .head_dim = d,
          .page_size = page_size,
          .kv_type = storage_type(k, "k_cache"),
          .q_norm = norm(q_norm, "q_norm"),
          .k_norm = norm(k_norm, "k_norm"),
          .eps = float(eps)};
}

AttentionArgs attention_args(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& page_table,
                             const Tensor& prefix_lens, const Tensor& row_offsets, const std::optional<Tensor>& mask,
                             double scale, double softcap) {
  check_caches(k, v);
  const int64_t rows = q.size(0), d = q.size(2), requests = prefix_lens.dim() ? prefix_lens.size(0) : -1;
  SSD_CHECK(q.stride(2) == 1, "q: got strides ", q.strides(), ", wanted 1 in the last dimension");
  SSD_CHECK(d == k.size(3), "q: got head_dim ", d, ", wanted that of k_cache, ", k.size(3));
  SSD_CHECK(d % 16 == 0 && d <= 256, "q: got head_dim ", d, ", wanted a multiple of 16 up to 256");
  SSD_CHECK(k.size(2) > 0 && q.size(1) % k.size(2) == 0, "q: got ", q.size(1), " heads, wanted a multiple of the ",
            k.size(2), " heads of k_cache");
  SSD_CHECK_TYPE(q.scalar_type() == at::kFloat || q.scalar_type() == k.scalar_type(), "q: got dtype ", q.scalar_type(),
                 ", wanted float32 or that of k_cache, ", k.scalar_type());
  SSD_CHECK(k.size(1) >= 16, "k_cache: got page_size ", k.size(1), ", wanted at least 16");
  check_dense(prefix_lens, "prefix_lens", at::kInt, 1);
  check_dense(row_offsets, "row_offsets", at::kInt, 1);
  SSD_CHECK_TYPE(page_table.scalar_type() == at::kInt, "page_table: got dtype ", page_table.scalar_type(),
                 ", wanted Int");
  SSD_CHECK(page_table.dim() == 2 && page_table.size(0) == requests, "page_table: got shape ", page_table.sizes(),
            ", wanted [", requests, ", pages of a request]");
  SSD_CHECK(page_table.stride(1) == 1 || page_table.size(1) < 2, "page_table: got strides ", page_table.strides(),
            ", wanted 1 in the last dimension");
  SSD_CHECK(row_offsets.size(0) == requests + 1, "row_offsets: got ", row_offsets.size(0), " elements, wanted ",
            requests + 1);
  const int64_t words = mask ? mask->size(-1) : 0;
  if (mask) {
    check_dense(*mask, "mask", at::kLong, 2);
    SSD_CHECK(mask->size(0) == rows && words >= 1 && words <= 8, "mask: got shape ", mask->sizes(), ", wanted [", rows,
              ", 1 to 8]");
  }
  const int32_t *offsets = row_offsets.const_data_ptr<int32_t>(), *prefix = prefix_lens.const_data_ptr<int32_t>();
  const int64_t* bits = mask ? mask->const_data_ptr<int64_t>() : nullptr;
  SSD_CHECK(offsets[0] == 0 && offsets[requests] == rows, "row_offsets: got ", offsets[0], " to ", offsets[requests],
            ", wanted 0 to ", rows);
  for (int64_t b = 0; b < requests; ++b) {
    SSD_CHECK(offsets[b] <= offsets[b + 1], "row_offsets: got ", offsets[b + 1], " after ", offsets[b],
              ", wanted ascending offsets");
    SSD_CHECK(prefix[b] >= 0, "prefix_lens: got ", prefix[b], ", wanted 0 or more");
    const int64_t n = offsets[b + 1] - offsets[b];
    int64_t slots = bits ? 0 : n;
    for (int64_t i = offsets[b] * words; bits && i < offsets[b + 1] * words; ++i)
      if (bits[i]) slots = std::max<int64_t>(slots, i % words * 64 + 64 - __builtin_clzll(uint64_t(bits[i])));
    const int64_t used = n ? (prefix[b] + slots + k.size(1) - 1) / k.size(1) : 0;
    SSD_CHECK(used <= page_table.size(1), bits ? "mask" : "prefix_lens", ": request ", b, " needs ", used,
              " pages, page_table has ", page_table.size(1));
    const int32_t* pages = page_table.const_data_ptr<int32_t>() + b * page_table.stride(0);
    for (int64_t i = 0; i < used; ++i)
      SSD_CHECK(pages[i] >= 0 && pages[i] < k.size(0), "page_table: got page ", pages[i], " for request ", b,
                ", wanted 0 to ", k.size(0) - 1);
  }
  return {.q = q.const_data_ptr(),
          .k = k.const_data_ptr(),
          .v = v.const_data_ptr(),
          .out = nullptr,
          .lse = nullptr,
          .page_table = page_table.const_data_ptr<int32_t>(),
          .prefix_lens = prefix,
          .row_offsets = offsets,
          .mask = bits,
          .q_row = q.stride(0),
          .q_head = q.stride(1),
          .k_page = k.stride(0),
          .k_slot = k.stride(1),
          .k_head = k.stride(2),
          .v_page = v.stride(0),
          .v_slot = v.stride(1),
          .v_head = v.stride(2),
          .table_row = page_table.stride(0),
          .requests = requests,
          .heads = q.size(1),
          .kv_heads = k.size(2),
          .head_dim = d,
          .page_size = k.size(1),
          .words = words,
          .q_type = storage_type(q, "q"),
          .kv_type = storage_type(k, "k_cache"),
          .scale = float(scale),
          .softcap = float(softcap)};
}

}  // namespace ssd

namespace {
using at::Tensor;

Tensor rope_append(const Tensor& qkv, const Tensor& cos, const Tensor& sin, const Tensor& positions,
                   const Tensor& slots, Tensor k_cache, Tensor v_cache, const std::optional<Tensor>& q_norm,
                   const std::optional<Tensor>& k_norm, double eps) {
  ssd::check_caches(k_cache, v_cache);
  ssd::check_dense(qkv, "qkv", at::kFloat, 2);
  const int64_t d = k_cache.size(3), heads = qkv.size(1) / d - 2 * k_cache.size(2);
  SSD_CHECK(qkv.size(1) % d == 0 && heads > 0, "qkv: got ", qkv.size(1), " columns, wanted (Hq + 2 * ", k_cache.size(2),
            ") * ", d);
  Tensor q = at::empty({qkv.size(0), heads, d}, at::kFloat);
  const auto a = ssd::rope_args(qkv, cos, sin, positions, slots, k_cache, v_cache, q, q_norm, k_norm, eps);
  ssd::pool().run([a](ssd::Team& team) { ssd::kernels().rope_append(a, team); });
  return q;
}

std::tuple<Tensor, Tensor> tree_attention(const Tensor& q, const Tensor& k_cache, const Tensor& v_cache,
                                          const Tensor& page_table, const Tensor& prefix_lens,
                                          const Tensor& row_offsets, const std::optional<Tensor>& mask, double scale,
                                          double softcap, bool return_lse) {
  SSD_CHECK(q.dim() == 3, "q: got shape ", q.sizes(), ", wanted [rows, heads, head_dim]");
  SSD_CHECK(softcap >= 0, "softcap: got ", softcap, ", wanted 0 (none) or more");
  auto a = ssd::attention_args(q, k_cache, v_cache, page_table, prefix_lens, row_offsets, mask, scale, softcap);
  Tensor out = at::empty({q.size(0), q.size(1), q.size(2)}, q.options());
  Tensor lse = at::empty({return_lse ? q.size(0) : 0, q.size(1)}, at::kFloat);
  a.out = out.mutable_data_ptr();
  a.lse = return_lse ? lse.mutable_data_ptr<float>() : nullptr;
  auto& pool = ssd::pool();
  auto plan = ssd::plan_attention(a, pool.size());
  Tensor partials = at::empty({plan.partials * (a.head_dim + 2)}, at::kFloat);
  pool.run([a, plan = std::move(plan), parts = partials.mutable_data_ptr<float>()](ssd::Team& team) {
    ssd::kernels().attention(a, plan, parts, team);
  });
  return {out, lse};
}

}  // namespace

TORCH_LIBRARY_IMPL(ssd, CPU, m) {
  m.impl("rope_append", rope_append);
  m.impl("tree_attention", tree_attention);
}
