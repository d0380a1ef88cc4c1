// Schemas of all operators. Each backend registers its implementations in one file per group of operators; the fakes
// stand beside the public functions in ssd/kernels.
#include <torch/library.h>

TORCH_LIBRARY(ssd, m) {
  // threads and instruction set of the CPU backend
  m.def("bind_threads(int[] cores, int shuffle=0) -> ()");  // shuffle: for tests, see cpu/pool.h
  m.def("allowed_cores() -> int[]");
  m.def("num_threads() -> int");
  m.def("set_isa(str name) -> ()");
  m.def("isa() -> str");
  // roofline of the cores: XOR of the 8-byte words of x; number of operations that the multiply-adds made
  m.def("probe_read(Tensor x) -> int");
  m.def("probe_fma(int iterations) -> float");
  // paged cache
  m.def(
      "rope_append(Tensor qkv, Tensor cos, Tensor sin, Tensor positions, Tensor slots, Tensor(a!) k_cache, Tensor(b!) "
      "v_cache, Tensor? q_norm=None, Tensor? k_norm=None, float eps=0) -> Tensor");
  m.def(
      "tree_attention(Tensor q, Tensor k_cache, Tensor v_cache, Tensor page_table, Tensor prefix_lens, Tensor "
      "row_offsets, Tensor? mask, float scale, float softcap=0, bool return_lse=False) -> (Tensor, Tensor)");
  // a whole forward pass; layers holds twelve tensors per layer: attention norm, qkv, bias, o, bias, mlp norm, gate_up,
  // bias, down, bias, q norm, k norm; a tensor that the model lacks is empty. A feature draft passes hidden, which
  // enters the first layer, and hidden_norm. Returns logits and features.
  m.def(
      "llama_forward(Tensor ids, Tensor positions, Tensor slots, Tensor row_offsets, Tensor prefix_lens, Tensor "
      "page_table, Tensor? mask, Tensor logit_rows, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor embedding, Tensor[] "
      "layers, Tensor norm, Tensor lm_head, Tensor cos, Tensor sin, int heads, int inner_size, float eps, float scale, "
      "int? vocab=None, Tensor? hidden=None, Tensor? hidden_norm=None, int[] feature_layers=[]) -> (Tensor, Tensor)");
  m.def("kv_copy(Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor sources, Tensor targets) -> ()");
  // dense
  m.def("pack_linear(Tensor weight, str format, int? outputs=None) -> Tensor");
  m.def("linear(Tensor x, Tensor packed, int n, Tensor? bias=None, Tensor? residual=None) -> Tensor");
  m.def("linear_swiglu(Tensor x, Tensor packed, int n, Tensor? bias=None) -> Tensor");
  m.def("embedding(Tensor ids, Tensor table) -> Tensor");
  m.def("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor");
  m.def("add_rms_norm(Tensor x, Tensor residual, Tensor weight, float eps) -> (Tensor, Tensor)");
  // speculation cache and mailbox; docs/protocol.md
  m.def("spec_cache_layout(int[] sizes) -> int[]");
  m.def("spec_cache_reset(Tensor(a!) cache, int[] sizes) -> ()");
  m.def("spec_cache_assign(Tensor(a!) cache, int slot, int owner, Tensor tokens, Tensor? features) -> int");
  m.def("spec_cache_free(Tensor(a!) cache, int slot) -> ()");
  m.def(
      "spec_cache_match_swap(Tensor(a!) cache, Tensor slots, Tensor path, Tensor accepted, Tensor emitted, "
      "Tensor(b!) branch, Tensor(c!) taken, Tensor(d!) tokens, Tensor(e!) parents, Tensor(f!) kinds) -> ()");
  m.def(
      "spec_cache_post(Tensor(a!) cache, Tensor slots, Tensor path, Tensor accepted, Tensor emitted, Tensor branch, "
      "Tensor taken, Tensor tokens, Tensor parents, Tensor? features, Tensor? row_offsets) -> ()");
  m.def(
      "spec_cache_publish(Tensor(a!) cache, Tensor slots, Tensor epochs, Tensor keys, Tensor tokens, "
      "Tensor? parents, Tensor? counts, int kind) -> int");
  m.def(
      "spec_cache_extend(Tensor(a!) cache, Tensor slots, Tensor epochs, int first, Tensor tokens, "
      "Tensor? parents, Tensor? counts) -> int");
  m.def("spec_cache_wait_ready(Tensor cache, Tensor slots, int timeout_us) -> int");
  m.def(
      "spec_cache_wait_outcomes(Tensor cache, Tensor slots, Tensor seen, int timeout_us, Tensor(a!) records) "
      "-> int");
  m.def("spec_cache_read_log(Tensor cache, int slot, int born, int start, Tensor(a!) tokens) -> bool");
  m.def("spec_cache_read_features(Tensor cache, int slot, int born, int start, Tensor(a!) features) -> bool");
  // what followed earlier occurrences of a text's suffix; suffix_size returns (tokens, bytes)
  m.def("suffix_automaton() -> Tensor");
  m.def("suffix_follow(Tensor(a!) automaton, Tensor tokens, int width, int limit) -> (int, Tensor)");
  m.def("suffix_size(Tensor automaton) -> (int, int)");
  // sampling
  m.def(
      "sample(Tensor logits, Tensor temperature, Tensor top_k, Tensor top_p, Tensor min_p, Tensor seeds, "
      "Tensor positions, bool logprobs=True) -> (Tensor, Tensor)");
  m.def(
      "top_f(Tensor logits, Tensor temperature, Tensor top_k, Tensor top_p, Tensor min_p, Tensor seeds, "
      "Tensor positions, int f, Tensor? exclude=None, Tensor? target_ids=None, int purpose=0) -> (Tensor, Tensor)");
  m.def("probs(Tensor logits, Tensor temperature, Tensor top_k, Tensor top_p, Tensor min_p) -> Tensor");
  m.def(
      "verify_coupled(Tensor logits, Tensor row_offsets, Tensor tokens, Tensor parents, Tensor temperature, "
      "Tensor top_k, Tensor top_p, Tensor min_p, Tensor seeds, Tensor positions, bool logprobs=False) "
      "-> (Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "verify_rejection(Tensor logits, Tensor row_offsets, Tensor tokens, Tensor parents, Tensor kinds, Tensor? q, "
      "Tensor temperature, Tensor top_k, Tensor top_p, Tensor min_p, Tensor seeds, Tensor positions, "
      "bool logprobs=False) -> (Tensor, Tensor, Tensor, Tensor)");
  m.def("noise_words(Tensor seeds, Tensor positions, int ids, int purpose=0) -> Tensor");
  m.def("philox(int[4] counter, int[2] key) -> int[]");
  // CUDA C++ only; docs/kernels-cuda.md
  m.def(
      "verify_swap(Tensor(a!) cache, int[] sizes, Tensor slots, Tensor sampled, Tensor(b!) ids, Tensor(c!) parents, "
      "Tensor(d!) positions, Tensor(e!) kv_slots, Tensor(f!) mask, Tensor(g!) prefix_lens, Tensor page_table, "
      "int page_size, Tensor capacity, Tensor? features) "
      "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
}
