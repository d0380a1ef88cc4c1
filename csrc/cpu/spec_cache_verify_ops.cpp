// CPU registration of the verify lane's side of the speculation cache: the steps of ssd/spec_cache.h after checks.
#include <torch/library.h>

#include "spec_cache_checks.h"
#include "timed_wait.h"

namespace {
using namespace ssd::spec;
using ssd::SpecCache;

void reset(const Tensor& cache, at::IntArrayRef sizes) {
  const int64_t bytes = layout(sizes).back();
  check_block(cache);
  SSD_CHECK(cache.numel() == bytes, "cache: got ", cache.numel(), " bytes, wanted ", bytes);
  void* base = cache.mutable_data_ptr();
  std::memset(base, 0, bytes);
  SpecCache c(base, sizes_of(sizes));
  for (int64_t slot = 0; slot < c.d.slots; ++slot) c.round[slot] = 1, c.owner[slot] = -1;
  std::copy(sizes.begin(), sizes.end(), c.header + 1);
  c.header[0] = ssd::kSpecMagic;
}

int64_t assign(const Tensor& cache, int64_t slot, int64_t owner, const Tensor& tokens, const OptTensor& features) {
  SpecCache c = open(cache);
  check_slot(c, slot);
  SSD_CHECK(owner >= 0, "owner: got ", owner, ", wanted 0 or more");
  ssd::check_dense(tokens, "tokens", at::kLong, 1);
  const int64_t n = tokens.numel();
  SSD_CHECK(n > 0, "tokens: got none, wanted the confirmed tokens up to the root");
  check_room(c, slot, 0, n, "tokens");
  const int64_t* ids = tokens.const_data_ptr<int64_t>();
  check_ids(c, ids, n, "tokens");
  int64_t rows;
  const uint64_t* f = check_features(c, features, n, &rows);
  c.assign(slot, owner, ids, n, f, rows);
  return c.round[slot];
}

void release(const Tensor& cache, int64_t slot) {
  SpecCache c = open(cache);
  check_slot(c, slot);
  c.assign(slot, -1, nullptr, 0, nullptr, 0);
}

void match_swap(const Tensor& cache, const Tensor& slots, const Tensor& nodes, const Tensor& tokens, const Tensor& branch,
                const Tensor& taken, const Tensor& spec_tokens, const Tensor& spec_parents) {
  SpecCache c = open(cache);
  const int64_t B = check_slots(c, slots), N = c.d.nodes;
  const int64_t *slot = slots.const_data_ptr<int64_t>(), *bonus = in<int64_t>(tokens, "tokens", {B});
  const int32_t* node = in<int32_t>(nodes, "nodes", {B});
  int32_t *o_branch = out<int32_t>(branch, "branch", {B}), *o_taken = out<int32_t>(taken, "taken", {B});
  int64_t* o_tokens = out<int64_t>(spec_tokens, "spec_tokens", {B, N});
  int32_t* o_parents = out<int32_t>(spec_parents, "spec_parents", {B, N});
  for (int64_t i = 0; i < B; ++i) {
    ssd::Match m = c.match_swap(slot[i], node[i], bonus[i]);
    o_branch[i] = m.branch;
    o_taken[i] = m.nodes;
    if (m.branch < 0) continue;
    const int64_t at = c.branch_at(c.active[slot[i]], slot[i], m.branch) * N;
    std::copy_n(c.tokens + at, m.nodes, o_tokens + i * N);
    std::copy_n(c.parents + at, m.nodes, o_parents + i * N);
  }
}

void post(const Tensor& cache, const Tensor& slots, const Tensor& nodes, const Tensor& tokens, const Tensor& branch,
          const Tensor& taken, const Tensor& spec_tokens, const Tensor& spec_parents, const Tensor& confirmed,
          const Tensor& offsets, const OptTensor& features) {
  SpecCache c = open(cache);
  const int64_t B = check_slots(c, slots), N = c.d.nodes;
  const int64_t *slot = slots.const_data_ptr<int64_t>(), *bonus = in<int64_t>(tokens, "tokens", {B});
  const int32_t *node = in<int32_t>(nodes, "nodes", {B}), *b = in<int32_t>(branch, "branch", {B});
  const int32_t *t = in<int32_t>(taken, "taken", {B}), *o = in<int32_t>(offsets, "offsets", {B + 1});
  const int64_t* ids = in<int64_t>(spec_tokens, "spec_tokens", {B, N});
  const int32_t* above = in<int32_t>(spec_parents, "spec_parents", {B, N});
  ssd::check_dense(confirmed, "confirmed", at::kLong, 1);
  const int64_t* new_ids = confirmed.const_data_ptr<int64_t>();
  check_ids(c, new_ids, confirmed.numel(), "confirmed");
  SSD_CHECK(o[0] == 0 && o[B] == confirmed.numel(), "offsets: got ", o[0], " to ", o[B], ", wanted 0 to ",
            confirmed.numel());
  for (int64_t i = 0; i < B; ++i) {
    SSD_CHECK(o[i] <= o[i + 1], "offsets: got ", o[i + 1], " after ", o[i], ", wanted an ascending list");
    SSD_CHECK(t[i] >= 0 && t[i] <= N, "taken: got ", t[i], ", wanted 0 to ", N);
    SSD_CHECK(c.owner[slot[i]] >= 0, "slots: got ", slot[i], ", a free slot, wanted an assigned one");
    check_room(c, slot[i], c.length[slot[i]], o[i + 1] - o[i], "confirmed");
  }
  int64_t rows;
  const uint64_t* f = check_features(c, features, confirmed.numel(), &rows);
  SSD_CHECK(!f || rows == confirmed.numel(), "features: got ", rows, " rows, wanted ", confirmed.numel());
  for (int64_t i = 0; i < B; ++i) {
    int64_t proposal[64], n = o[i + 1] - o[i];
    for (int64_t j = 0; j < t[i]; ++j) proposal[j] = ssd::pack_key(above[i * N + j], ids[i * N + j]);
    c.append(slot[i], new_ids + o[i], n, f ? f + o[i] * c.d.feature_words : nullptr, f ? n : 0);
    c.post(slot[i], node[i], bonus[i], b[i], t[i], proposal, t[i]);
  }
}

int64_t wait_ready(const Tensor& cache, const Tensor& slots, int64_t timeout_us) {
  SpecCache c = open(cache);
  const int64_t B = check_slots(c, slots), *slot = slots.const_data_ptr<int64_t>();
  int64_t ready = 0;
  ssd::timed_wait(timeout_us, [&] {
    ready = 0;
    for (int64_t i = 0; i < B; ++i) ready += c.is_ready(slot[i]);
    return ready == B;
  });
  return ready;
}

}  // namespace

TORCH_LIBRARY_IMPL(ssd, CPU, m) {
  m.impl("spec_cache_reset", reset);
  m.impl("spec_cache_assign", assign);
  m.impl("spec_cache_free", release);
  m.impl("spec_cache_match_swap", match_swap);
  m.impl("spec_cache_post", post);
  m.impl("spec_cache_wait_ready", wait_ready);
}
TORCH_LIBRARY_IMPL(ssd, CompositeExplicitAutograd, m) { m.impl("spec_cache_layout", layout); }
