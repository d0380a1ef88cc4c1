// CPU registration of the dense operators.
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include "check.h"
#include "cpu/kernels.h"

namespace {
using at::Tensor;

void check_norm(const Tensor& x, const Tensor& weight) {
  ssd::check_dense(x, "x", at::kFloat, 2);
  ssd::check_dense(weight, "weight", at::kFloat, 1);
  SSD_CHECK(weight.size(0) == x.size(1), "weight: got ", weight.size(0), " elements, wanted ", x.size(1));
}

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  check_norm(x, weight);
  Tensor y = at::empty_like(x);
  ssd::RmsNormArgs a{.x = x.const_data_ptr<float>(),
                     .residual = nullptr,
                     .weight = weight.const_data_ptr<float>(),
                     .y = y.mutable_data_ptr<float>(),
                     .sum = nullptr,
                     .rows = x.size(0),
                     .n = x.size(1),
                     .y_stride = x.size(1),
                     .eps = float(eps)};
  ssd::pool().run([a](ssd::Team& team) { ssd::kernels().rms_norm(a, team); });
  return y;
}

std::tuple<Tensor, Tensor> add_rms_norm(const Tensor& x, const Tensor& residual, const Tensor& weight, double eps) {
  check_norm(x, weight);
  ssd::check_dense(residual, "residual", at::kFloat, 2);
  SSD_CHECK(residual.sizes() == x.sizes(), "residual: got shape ", residual.sizes(), ", wanted ", x.sizes());
  Tensor y = at::empty_like(x), sum = at::empty_like(x);
  ssd::RmsNormArgs a{.x = x.const_data_ptr<float>(),
                     .residual = residual.const_data_ptr<float>(),
                     .weight = weight.const_data_ptr<float>(),
                     .y = y.mutable_data_ptr<float>(),
                     .sum = sum.mutable_data_ptr<float>(),
                     .rows = x.size(0),
                     .n = x.size(1),
                     .y_stride = x.size(1),
                     .eps = float(eps)};
  ssd::pool().run([a](ssd::Team& team) { ssd::kernels().rms_norm(a, team); });
  return {y, sum};
}

void bind_threads(at::IntArrayRef cores, int64_t shuffle) { ssd::bind({cores.begin(), cores.end()}, shuffle); }
std::vector<int64_t> allowed_cores() { return {ssd::allowed_cores().begin(), ssd::allowed_cores().end()}; }
int64_t num_threads() { return ssd::pool().size(); }
void set_isa(c10::string_view name) { ssd::set_isa(std::string(name).c_str()); }
std::string isa() { return ssd::kernels().isa; }

}  // namespace

TORCH_LIBRARY_IMPL(ssd, CPU, m) {
  m.impl("rms_norm", rms_norm);
  m.impl("add_rms_norm", add_rms_norm);
}
TORCH_LIBRARY_IMPL(ssd, CompositeExplicitAutograd, m) {
  m.impl("bind_threads", bind_threads);
  m.impl("allowed_cores", allowed_cores);
  m.impl("num_threads", num_threads);
  m.impl("set_isa", set_isa);
  m.impl("isa", isa);
}
