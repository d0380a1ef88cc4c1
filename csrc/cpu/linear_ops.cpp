// CPU registration of pack_linear, linear, linear_swiglu and embedding.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "linear_ops.h"

namespace ssd {

LinearArgs linear_args(const char* x, const char* name, int64_t rows, int64_t k, const at::Tensor& packed, int64_t n,
                       const std::optional<at::Tensor>& bias, bool swiglu) {
  const auto type = packed.scalar_type();
  SSD_CHECK_TYPE(type == at::kFloat || type == at::kBFloat16 || type == at::kByte, name, ": got dtype ", type,
                 ", wanted the result of pack_linear");
  SSD_CHECK(packed.dim() == 3 && packed.is_contiguous(), name, ": got shape ", packed.sizes(),
            ", wanted the result of pack_linear");
  const auto format = type == at::kFloat ? Format::fp32 : type == at::kBFloat16 ? Format::bf16 : Format::int8;
  const bool int8 = format == Format::int8;
  SSD_CHECK(n > 0 && packed.size(0) == panels(n), "n: got ", n, ", wanted the outputs of ", name, ", which has ",
            packed.size(0), " panels of 16");
  SSD_CHECK(packed.size(1) == (int8 ? groups(k) : k) && packed.size(2) == (int8 ? kGroupBytes : kPanel), x, ": got ", k,
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

void embed(const at::Tensor& ids, const at::Tensor& table, float* out, Team& team) {
  const int64_t h = table.size(1);
  int64_t r0, r1;
  team.share(ids.size(0), r0, r1);
  for (int64_t r = r0; r < r1; ++r) {
    const int64_t at = ids.const_data_ptr<int64_t>()[r] * h;
    if (table.scalar_type() == at::kFloat) std::memcpy(out + r * h, table.const_data_ptr<float>() + at, h * 4);
    else
      for (int64_t i = 0; i < h; ++i) out[r * h + i] = to_float(((const bf16*)table.const_data_ptr())[at + i]);
  }
}

void check_embedding(const at::Tensor& ids, const at::Tensor& table) {
  check_dense(ids, "ids", at::kLong, 1);
  const auto type = table.scalar_type();
  SSD_CHECK_TYPE(type == at::kFloat || type == at::kBFloat16, "table: got dtype ", type, ", wanted float32 or bfloat16");
  SSD_CHECK(table.dim() == 2 && table.is_contiguous(), "table: got shape ", table.sizes(), ", wanted contiguous [V, H]");
  for (int64_t r = 0; r < ids.size(0); ++r) {
    const int64_t id = ids.const_data_ptr<int64_t>()[r];
    SSD_CHECK(id >= 0 && id < table.size(0), "ids: got ", id, " in row ", r, ", wanted 0 to ", table.size(0) - 1);
  }
}

}  // namespace ssd

namespace {
using at::Tensor;
using ssd::kGroup, ssd::kGroupBytes, ssd::kPanel;

void pack_bf16(const float* w, int64_t n, int64_t k, ssd::bf16* out) {
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < k; ++j)
      out[(i / kPanel * k + j) * kPanel + i % 8 * 2 + i % kPanel / 8] = ssd::to_bf16(w[i * k + j]);
}

void pack_int8(const float* w, int64_t n, int64_t k, uint8_t* out) {
  const int64_t n_groups = ssd::groups(k);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t g = 0; g < n_groups; ++g) {
      uint8_t* block = out + (i / kPanel * n_groups + g) * kGroupBytes;
      const int64_t k0 = g * kGroup, k1 = std::min(k, k0 + kGroup);
      float top = 0;
      for (int64_t j = k0; j < k1; ++j) top = std::max(top, std::abs(w[i * k + j]));
      const ssd::fp16 scale = ssd::to_fp16(top / 127.f);
      SSD_CHECK((scale.bits & 0x7fff) < 0x7c00, "weight: row ", i, " has a magnitude of ", top,
                ", too large for int8 with an fp16 scale");
      std::memcpy(block + kGroup * kPanel + i % kPanel * 2, &scale, 2);
      const float s = ssd::to_float(scale);
      for (int64_t j = k0; j < k1 && s > 0; ++j) {
        const float q = std::nearbyint(std::min(127.f, std::max(-127.f, w[i * k + j] / s)));
        block[(j - k0) / 4 * 64 + i % kPanel * 4 + (j - k0) % 4] = uint8_t(int8_t(q));
      }
    }
}

Tensor pack_linear(const Tensor& weight, c10::string_view format) {
  ssd::check_dense(weight, "weight", at::kFloat, 2);
  const int64_t n = weight.size(0), k = weight.size(1), p = ssd::panels(n);
  const float* w = weight.const_data_ptr<float>();
  if (format == "fp32") {
    Tensor out = at::zeros({p, k, kPanel}, at::kFloat);
    float* o = out.mutable_data_ptr<float>();
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < k; ++j) o[(i / kPanel * k + j) * kPanel + i % kPanel] = w[i * k + j];
    return out;
  }
  if (format == "bf16") {
    Tensor out = at::zeros({p, k, kPanel}, at::kBFloat16);
    pack_bf16(w, n, k, (ssd::bf16*)out.mutable_data_ptr());
    return out;
  }
  SSD_CHECK(format == "int8", "format: got '", format, "', wanted 'fp32', 'bf16' or 'int8'");
  Tensor out = at::zeros({p, ssd::groups(k), kGroupBytes}, at::kByte);
  pack_int8(w, n, k, out.mutable_data_ptr<uint8_t>());
  return out;
}

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
  const int64_t scratch = a.format == ssd::Format::int8 ? a.rows * ssd::groups(a.k) : 0;
  Tensor y = at::empty({a.rows, columns}, at::kFloat), xq = at::empty({scratch * kGroup}, at::kChar);
  Tensor xs = at::empty({scratch * int64_t(sizeof(ssd::RowGroup))}, at::kByte);
  a.x = x.const_data_ptr<float>(), a.y = y.mutable_data_ptr<float>();
  a.xq = xq.mutable_data_ptr<int8_t>(), a.xs = (ssd::RowGroup*)xs.mutable_data_ptr();
  ssd::pool().run([&](ssd::Team& team) { ssd::kernels().linear(a, team); });
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
  ssd::pool().run([&](ssd::Team& team) { ssd::embed(ids, table, y.mutable_data_ptr<float>(), team); });
  return y;
}

}  // namespace

TORCH_LIBRARY_IMPL(ssd, CPU, m) {
  m.impl("pack_linear", pack_linear);
  m.impl("linear", linear);
  m.impl("linear_swiglu", linear_swiglu);
  m.impl("embedding", embedding);
}
