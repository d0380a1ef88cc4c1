// CPU registration of the suffix automaton. The state is an opaque tensor whose storage is the C++ object itself: its
// memory is freed with the tensor, and a call costs no more than that of any other operator.
#include <ATen/EmptyTensor.h>
#include <ATen/ops/from_blob.h>
#include <torch/library.h>

#include "check.h"
#include "cpu/suffix_automaton.h"

namespace {

constexpr int64_t kLongest = int64_t(1) << 29;  // tokens: states and edges are numbered in 32 bits

struct State {
  const State* self = this;  // tells the object from a copy of its bytes
  ssd::SuffixAutomaton text;
  std::vector<int32_t> ends;
};

State& state_of(const at::Tensor& t) {
  const bool sized = t.scalar_type() == at::kByte && t.is_contiguous() && t.numel() == int64_t(sizeof(State));
  State* state = sized ? static_cast<State*>(t.mutable_data_ptr()) : nullptr;
  SSD_CHECK(state && state->self == state, "automaton: got ", t.scalar_type(), " ", t.sizes(),
            ", wanted a tensor that suffix_automaton made");
  return *state;
}

at::Tensor suffix_automaton() {
  State* state = new State;
  return at::from_blob(state, {int64_t(sizeof(State))}, [](void* p) { delete static_cast<State*>(p); }, at::kByte);
}

std::tuple<int64_t, at::Tensor> suffix_follow(const at::Tensor& automaton, const at::Tensor& tokens, int64_t width,
                                              int64_t limit) {
  State& state = state_of(automaton);
  ssd::check_dense(tokens, "tokens", at::kLong, 1);
  SSD_CHECK(width >= 0, "width: got ", width, ", wanted at least 0");
  SSD_CHECK(limit >= 0, "limit: got ", limit, ", wanted at least 0");
  const int64_t n = tokens.numel(), *t = tokens.const_data_ptr<int64_t>(), all = state.text.size() + n;
  SSD_CHECK(all <= kLongest, "tokens: got ", all, " in all, wanted at most ", kLongest);
  for (int64_t i = 0; i < n; i++)
    SSD_CHECK(t[i] >= 0 && t[i] <= INT32_MAX, "tokens: got ", t[i], " at ", i, ", wanted 0 to ", INT32_MAX);
  for (int64_t i = 0; i < n; i++) state.text.push(int32_t(t[i]));
  state.text.ends(width, state.ends);
  at::Tensor out = at::detail::empty_cpu({int64_t(state.ends.size()), limit}, at::kLong);
  int64_t* o = out.mutable_data_ptr<int64_t>();
  for (int32_t end : state.ends)
    for (int64_t i = 0; i < limit; i++) *o++ = state.text.following(end, i);
  return {state.text.length(), out};
}

std::tuple<int64_t, int64_t> suffix_size(const at::Tensor& automaton) {
  const State& state = state_of(automaton);
  return {state.text.size(), state.text.bytes()};
}

}  // namespace

TORCH_LIBRARY_IMPL(ssd, CPU, m) {
  m.impl("suffix_follow", suffix_follow);
  m.impl("suffix_size", suffix_size);
}
TORCH_LIBRARY_IMPL(ssd, CompositeExplicitAutograd, m) { m.impl("suffix_automaton", suffix_automaton); }
