// CPU registration of linear, linear_swiglu and embedding.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "linear_ops.h"

namespace ssd {

LinearArgs linear_args(const char* x, const char* name, int64_t rows, int64_t k, const at::Tensor& packed, int64_t n,
                       const std::optional<at::Tensor>& bias, bool swiglu) {
  const auto type = packed.scalar_type();
  SSD_CHECK_TYPE(type == at::kFloat || type == at::kBFloat16 || type == at::kByte, name, ": got dtype ", type,
                 ", wanted the result of pack_linear");
  const bool bytes = type == at::kByte;
  auto format = type == at::kFloat ? Format::fp32 : Format::bf16;
  if (bytes && packed.dim() == 3)
    for (auto f : {Format::int8, Format::q8_0, Format::q4_0, Format::q4_1})
      if (packed.size(2) == group_bytes(f)) format = f;
  SSD_CHECK(packed.dim() == 3 && packed.is_contiguous() && quantised(format) == bytes, name, ": got shape ",
            packed.sizes(), ", wanted the result of pack_linear");
  SSD_CHECK(n > 0 && packed.size(0) == panels(n), "n: got ", n, ", wanted the number of outputs of ", name,
            ", which has ", packed.size(0), " panels of 16");
  SSD_CHECK(packed.size(1) == (bytes ? groups(k, format) : k) && (bytes || packed.size(2) == kPanel), x, ": got ", k,
            " columns, wanted as many as ", name, " (shape ", packed.sizes(), ") has inputs");
  SSD_CHECK(!swiglu || n % 32 == 0, "n: got ", n, ", wanted a multiple of 32 (gate and up in blocks of 16)");
  LinearArgs a{};
  if (bias) {
    check_dense(*bias, "bias", at::kFloat, 1);
    SSD_CHECK(bias->size(0) == n, "bias: got ", bias->size(0), " elements, wanted ", n);
    a.bias = bias->const_data_ptr<float>();
  }
  a.w = packed.const_data_ptr();
  a.rows = rows, a.n = n, a.k = k, a.format = format, a.swiglu = swiglu;
  return a;
}

RowScratch::RowScratch(int64_t rows, int64_t k)
    : quants(at::empty({rows * padded(k)}, at::kChar)),
      groups(at::empty({rows * padded(k) / 32 * int64_t(sizeof(RowGroup))}, at::kByte)) {}

void RowScratch::lend(LinearArgs& a) const {
  a.xq = quants.mutable_data_ptr<int8_t>(), a.xs = (RowGroup*)groups.mutable_data_ptr();
}

EmbedArgs embed_args(const at::Tensor& ids, const at::Tensor& table, const at::Tensor& out) {
  return {ids.const_data_ptr<int64_t>(),
          table.const_data_ptr(),
          out.mutable_data_ptr<float>(),
          ids.size(0),
          table.size(1),
          table.scalar_type() == at::kFloat};
}

void embed(const EmbedArgs& a, Team& team) {
  team.each(a.rows, items_of(8 * a.h), [&](int64_t r) {
    const int64_t at = a.ids[r] * a.h;
    float* out = a.out + r * a.h;
    if (a.fp32) std::memcpy(out, (const float*)a.table + at, a.h * 4);
    else
      for (int64_t i = 0; i < a.h; ++i) out[i] = to_float(((const bf16*)a.table)[at + i]);
  });
}

void check_embedding(const at::Tensor& ids, const at::Tensor& table) {
  check_dense(ids, "ids", at::kLong, 1);
  const auto type = table.scalar_type();
  SSD_CHECK_TYPE(type == at::kFloat || type == at::kBFloat16, "table: got dtype ", type,
                 ", wanted float32 or bfloat16");
  SSD_CHECK(table.dim() == 2 && table.is_contiguous(), "table: got shape ", table.sizes(),
            ", wanted contiguous [V, H]");
  for (int64_t r = 0; r < ids.size(0); ++r) {
    const int64_t id = ids.const_data_ptr<int64_t>()[r];
    SSD_CHECK(id >= 0 && id < table.size(0), "ids: got ", id, " in row ", r, ", wanted 0 to ", table.size(0) - 1);
  }
}

}  // namespace ssd

namespace {
using at::Tensor;

Tensor run_linear(const Tensor& x, const Tensor& packed, int64_t n, const std::optional<Tensor>& bias,
                  const std::optional<Tensor>& residual, bool swiglu) {
  ssd::check_dense(x, "x", at::kFloat, 2);
  auto a = ssd::linear_args("x", "packed", x.size(0), x.size(1), packed, n, bias, swiglu);
  const int64_t columns = swiglu ? n / 2 : n;
  if (residual) {
    ssd::check_dense(*residual, "residual", at::kFloat, 2);
    SSD_CHECK(residual->size(0) == a.rows && residual->size(1) == columns, "residual: got shape ", residual->sizes(),
              ", wanted [", a.rows, ", ", columns, "]");
    a.residual = residual->const_data_ptr<float>();
  }
  Tensor y = at::empty({a.rows, columns}, at::kFloat);
  a.x = x.const_data_ptr<float>(), a.y = y.mutable_data_ptr<float>();
  const ssd::RowScratch scratch(ssd::quantised(a.format) ? a.rows : 0, a.k);
  scratch.lend(a);
  ssd::pool().run([a](ssd::Team& team) { ssd::kernels().linear(a, team); });
  return y;
}

Tensor linear(const Tensor& x, const Tensor& packed, int64_t n, const std::optional<Tensor>& bias,
              const std::optional<Tensor>& residual) {
  return run_linear(x, packed, n, bias, residual, false);
}

Tensor linear_swiglu(const Tensor& x, const Tensor& packed, int64_t n, const std::optional<Tensor>& bias) {
  return run_linear(x, packed, n, bias, std::nullopt, true);
}

Tensor embedding(const Tensor& ids, const Tensor& table) {
  ssd::check_embedding(ids, table);
  Tensor y = at::empty({ids.size(0), table.size(1)}, at::kFloat);
  ssd::pool().run([a = ssd::embed_args(ids, table, y)](ssd::Team& team) { ssd::embed(a, team); });
  return y;
}

}  // namespace

TORCH_LIBRARY_IMPL(ssd, CPU, m) {
  m.impl("linear", linear);
  m.impl("linear_swiglu", linear_swiglu);
  m.impl("embedding", embedding);
}
