// CPU registration of the probes that measure the roofline for the benchmarks.
#include <torch/library.h>

#include "check.h"
#include "cpu/kernels.h"

namespace {

int64_t probe_read(const at::Tensor& x) {
  SSD_CHECK(x.is_contiguous(), "x: got strides ", x.strides(), ", wanted a contiguous tensor");
  SSD_CHECK(x.nbytes() % 64 == 0, "x: got ", x.nbytes(), " bytes, wanted a multiple of 64");
  ssd::ProbeReadArgs a{static_cast<const char*>(x.const_data_ptr()), int64_t(x.nbytes() / 64), nullptr};
  std::vector<uint64_t> result(a.parts());
  a.result = result.data();
  ssd::pool().run([a](ssd::Team& team) { ssd::kernels().probe_read(a, team); });
  uint64_t word = 0;
  for (uint64_t r : result) word ^= r;
  return int64_t(word);
}

double probe_fma(int64_t iterations) {
  SSD_CHECK(iterations > 0, "iterations: got ", iterations, ", wanted at least 1");
  std::vector<float> result(ssd::pool().size());
  std::vector<double> flops(result.size());
  ssd::ProbeFmaArgs a{iterations, ssd::pool().size(), result.data(), flops.data()};
  ssd::pool().run([a](ssd::Team& team) { ssd::kernels().probe_fma(a, team); });
  double sum = 0;
  for (double f : flops) sum += f;
  return sum;
}

}  // namespace

TORCH_LIBRARY_IMPL(ssd, CPU, m) { m.impl("probe_read", probe_read); }
TORCH_LIBRARY_IMPL(ssd, CompositeExplicitAutograd, m) { m.impl("probe_fma", probe_fma); }
