// Schemas of all operators. One file per backend and group registers implementations;
// the fakes are beside the public functions in ssd/kernels.
#include <torch/library.h>

TORCH_LIBRARY(ssd, m) {
  // threads and instruction set of the CPU backend
  m.def("bind_threads(int[] cores) -> ()");
  m.def("num_threads() -> int");
  m.def("set_isa(str name) -> ()");
  m.def("isa() -> str");
  // roofline of the cores: XOR of the 8-byte words of x; operations done by iterations of multiply-adds
  m.def("probe_read(Tensor x) -> int");
  m.def("probe_fma(int iterations) -> float");
  // dense
  m.def("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor");
  m.def("add_rms_norm(Tensor x, Tensor residual, Tensor weight, float eps) -> (Tensor, Tensor)");
}
