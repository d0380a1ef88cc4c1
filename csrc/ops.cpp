// Schemas of all operators. One file per backend and group registers implementations;
// the fakes are beside the public functions in ssd/kernels.
#include <torch/library.h>

TORCH_LIBRARY(ssd, m) {
  // threads and instruction set of the CPU backend
  m.def("bind_threads(int[] cores) -> ()");
  m.def("num_threads() -> int");
  m.def("set_isa(str name) -> ()");
  m.def("isa() -> str");
  // dense
  m.def("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor");
  m.def("add_rms_norm(Tensor x, Tensor residual, Tensor weight, float eps) -> (Tensor, Tensor)");
  // speculation cache and mailbox; docs/protocol.md
  m.def("spec_cache_layout(int[] sizes) -> int[]");
  m.def("spec_cache_reset(Tensor(a!) cache, int[] sizes) -> ()");
  m.def("spec_cache_assign(Tensor(a!) cache, int slot, int owner, Tensor tokens, Tensor? features) -> int");
  m.def("spec_cache_free(Tensor(a!) cache, int slot) -> ()");
  m.def("spec_cache_match_swap(Tensor(a!) cache, Tensor slots, Tensor path, Tensor accepted, Tensor emitted, "
        "Tensor(b!) branch, Tensor(c!) taken, Tensor(d!) tokens, Tensor(e!) parents, Tensor(f!) kinds) -> ()");
  m.def("spec_cache_post(Tensor(a!) cache, Tensor slots, Tensor path, Tensor accepted, Tensor emitted, Tensor branch, "
        "Tensor taken, Tensor tokens, Tensor parents, Tensor? features, Tensor? row_offsets) -> ()");
  m.def("spec_cache_publish(Tensor(a!) cache, Tensor slots, Tensor epochs, Tensor keys, Tensor tokens, "
        "Tensor? parents, Tensor? counts, int kind) -> int");
  m.def("spec_cache_extend(Tensor(a!) cache, Tensor slots, Tensor epochs, int first, Tensor tokens, "
        "Tensor? parents, Tensor? counts) -> int");
  m.def("spec_cache_wait_ready(Tensor cache, Tensor slots, int timeout_us) -> int");
  m.def("spec_cache_wait_outcomes(Tensor cache, Tensor slots, Tensor seen, int timeout_us, Tensor(a!) records) "
        "-> int");
  m.def("spec_cache_read_log(Tensor cache, int slot, int born, int start, Tensor(a!) tokens) -> bool");
  m.def("spec_cache_read_features(Tensor cache, int slot, int born, int start, Tensor(a!) features) -> bool");
}
