// CPU registration of the verify lane's side of the speculation cache: checks, then the steps of ssd/spec_cache.h.
#include <torch/library.h>

#include "cpu/timed_wait.h"
#include "spec_cache_checks.h"

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

// The outcomes of B rounds, as verify_coupled returns them.
struct Outcomes {
  const int64_t* slot;
  const int8_t* path;
  const int32_t* accepted;
  const int64_t* emitted;
  int64_t B, width;
  int64_t node(int64_t i) const { return accepted[i] > 0 ? path[i * width + accepted[i] - 1] : -1; }
  int64_t count(int64_t i) const { return accepted[i] + 1; }  // confirmed tokens
  int64_t row(int64_t i, int64_t j) const { return j ? path[i * width + j - 1] + 1 : 0; }  // the row that drew token j
  const int64_t* confirmed(int64_t i) const { return emitted + i * (width + 1); }
  int64_t token(int64_t i) const { return confirmed(i)[accepted[i] > 0 ? accepted[i] : 0]; }
};

Outcomes check_outcomes(const SpecCache& c, const Tensor& slots, const Tensor& path, const Tensor& accepted,
                        const Tensor& emitted) {
  const int64_t B = check_slots(c, slots);
  SSD_CHECK(path.dim() == 2, "path: got ", path.dim(), " dimensions, wanted 2");
  const int64_t width = path.size(1);
  Outcomes o{slots.const_data_ptr<int64_t>(),
             in<int8_t>(path, "path", {B, width}),
             in<int32_t>(accepted, "accepted", {B}),
             in<int64_t>(emitted, "emitted", {B, width + 1}),
             B,
             width};
  const int64_t most = std::min(width, c.d.nodes);
  for (int64_t i = 0; i < B; ++i) {
    SSD_CHECK(o.accepted[i] >= -1 && o.accepted[i] <= most, "accepted: got ", o.accepted[i], ", wanted -1 to ", most);
    for (int64_t j = 0; j < o.accepted[i]; ++j)
      SSD_CHECK(o.path[i * width + j] >= 0 && o.path[i * width + j] < c.d.nodes, "path: got node ",
                int(o.path[i * width + j]), ", wanted 0 to ", c.d.nodes - 1);
    check_ids(c, o.confirmed(i), std::max<int64_t>(o.count(i), 1), "emitted");
  }
  return o;
}

void match_swap(const Tensor& cache, const Tensor& slots, const Tensor& path, const Tensor& accepted,
                const Tensor& emitted, const Tensor& branch, const Tensor& taken, const Tensor& tokens,
                const Tensor& parents, const Tensor& kinds) {
  SpecCache c = open(cache);
  const Outcomes o = check_outcomes(c, slots, path, accepted, emitted);
  const int64_t B = o.B, N = c.d.nodes;
  int32_t *b = out<int32_t>(branch, "branch", {B}), *t = out<int32_t>(taken, "taken", {B});
  int32_t* ids = out<int32_t>(tokens, "tokens", {B, N});
  int8_t *above = out<int8_t>(parents, "parents", {B, N}), *kind = out<int8_t>(kinds, "kinds", {B});
  for (int64_t i = 0; i < B; ++i) {
    ssd::Match m = c.match_swap(o.slot[i], o.node(i), o.token(i));
    b[i] = m.branch;
    t[i] = m.nodes;
    if (m.branch < 0) continue;
    const int64_t slab = c.active[o.slot[i]], at = c.branch_at(slab, o.slot[i], m.branch) * N;
    std::copy_n(c.tokens + at, m.nodes, ids + i * N);
    std::copy_n(c.parents + at, m.nodes, above + i * N);
    kind[i] = int8_t(c.kind[c.in_slab(slab, o.slot[i])]);
  }
}

void post(const Tensor& cache, const Tensor& slots, const Tensor& path, const Tensor& accepted, const Tensor& emitted,
          const Tensor& branch, const Tensor& taken, const Tensor& tokens, const Tensor& parents,
          const OptTensor& features, const OptTensor& row_offsets) {
  SpecCache c = open(cache);
  const Outcomes o = check_outcomes(c, slots, path, accepted, emitted);
  const int64_t B = o.B, N = c.d.nodes;
  const int32_t *b = in<int32_t>(branch, "branch", {B}), *t = in<int32_t>(taken, "taken", {B});
  const int32_t* ids = in<int32_t>(tokens, "tokens", {B, N});
  const int8_t* above = in<int8_t>(parents, "parents", {B, N});
  int64_t R = 0;
  const uint64_t* rows = check_features(c, features, INT64_MAX, &R);
  SSD_CHECK(!rows || row_offsets, "row_offsets: got none, wanted row offsets where features are given");
  const int32_t* first = rows ? in<int32_t>(row_offsets, "row_offsets", {B + 1}) : nullptr;
  for (int64_t i = 0; i < B; ++i) {
    SSD_CHECK(t[i] >= 0 && t[i] <= N, "taken: got ", t[i], ", wanted 0 to ", N);
    SSD_CHECK(c.owner[o.slot[i]] >= 0, "slots: got ", o.slot[i], ", a free slot, wanted an assigned one");
    check_room(c, o.slot[i], c.length[o.slot[i]], o.count(i), "emitted");
    for (int64_t j = 0; rows && j < o.count(i); ++j)
      SSD_CHECK(first[i] >= 0 && first[i] + o.row(i, j) < first[i + 1] && first[i + 1] <= R, "row_offsets: got ",
                first[i], " to ", first[i + 1], " for request ", i, ", wanted the rows of its path among ", R);
  }
  for (int64_t i = 0; i < B; ++i) {
    int64_t next[64], pick[64], n = o.count(i);
    for (int64_t j = 0; j < t[i]; ++j) next[j] = ssd::pack_key(above[i * N + j], ids[i * N + j]);
    for (int64_t j = 0; rows && j < n; ++j) pick[j] = first[i] + o.row(i, j);
    c.append(o.slot[i], o.confirmed(i), n, rows, rows ? n : 0, pick);
    c.post(o.slot[i], o.node(i), o.token(i), b[i], next, t[i]);
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
