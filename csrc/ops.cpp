// Schemas of all operators. One file per backend and group registers implementations;
// the fakes are beside the public functions in ssd/kernels.
#include <torch/library.h>

TORCH_LIBRARY(ssd, m) {
  // threads and instruction set of the CPU backend
  m.def("bind_threads(int[] cores) -> ()");
  m.def("num_threads() -> int");
  m.def("set_isa(str name) -> ()");
  m.def("isa() -> str");
  // paged cache
  m.def("rope_append(Tensor qkv, Tensor cos, Tensor sin, Tensor positions, Tensor slots, Tensor(a!) k_cache, Tensor(b!) v_cache) -> Tensor");
  m.def("tree_attention(Tensor q, Tensor k_cache, Tensor v_cache, Tensor page_table, Tensor prefix_lens, Tensor row_offsets, Tensor? mask, float scale, float softcap=0, bool return_lse=False) -> (Tensor, Tensor)");
  m.def("kv_copy(Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor sources, Tensor targets) -> ()");
  // dense
  m.def("pack_linear(Tensor weight, str format) -> Tensor");
  m.def("linear(Tensor x, Tensor packed, int n, Tensor? bias=None, Tensor? residual=None) -> Tensor");
  m.def("linear_swiglu(Tensor x, Tensor packed, int n, Tensor? bias=None) -> Tensor");
  m.def("embedding(Tensor ids, Tensor table) -> Tensor");
  m.def("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor");
  m.def("add_rms_norm(Tensor x, Tensor residual, Tensor weight, float eps) -> (Tensor, Tensor)");
  // sampling
  m.def("sample(Tensor logits, Tensor temperature, Tensor top_k, Tensor top_p, Tensor min_p, Tensor seeds, "
        "Tensor positions, bool logprobs=True) -> (Tensor, Tensor)");
  m.def("top_f(Tensor logits, Tensor temperature, Tensor top_k, Tensor top_p, Tensor min_p, Tensor seeds, "
        "Tensor positions, int f, Tensor? exclude=None, Tensor? target_ids=None, int purpose=0) -> (Tensor, Tensor)");
  m.def("probs(Tensor logits, Tensor temperature, Tensor top_k, Tensor top_p, Tensor min_p) -> Tensor");
  m.def("verify_coupled(Tensor logits, Tensor row_offsets, Tensor tokens, Tensor parents, Tensor temperature, "
        "Tensor top_k, Tensor top_p, Tensor min_p, Tensor seeds, Tensor positions, bool logprobs=False) "
        "-> (Tensor, Tensor, Tensor, Tensor)");
  m.def("verify_rejection(Tensor logits, Tensor row_offsets, Tensor tokens, Tensor parents, Tensor kinds, Tensor? q, "
        "Tensor temperature, Tensor top_k, Tensor top_p, Tensor min_p, Tensor seeds, Tensor positions, "
        "bool logprobs=False) -> (Tensor, Tensor, Tensor, Tensor)");
  m.def("noise_words(Tensor seeds, Tensor positions, int ids, int purpose=0) -> Tensor");
  m.def("philox(int[4] counter, int[2] key) -> int[]");
}
