// CPU registration of the draft lane's side of the speculation cache: checks, then the steps of ssd/spec_cache.h.
#include <torch/library.h>

#include "cpu/timed_wait.h"
#include "spec_cache_checks.h"

namespace {
using namespace ssd::spec;
using ssd::SpecCache;

struct Branches {
  const int64_t *slot, *epoch, *tokens;
  const int8_t* parents;
  const int32_t* counts;
  int64_t B, n;
};

Branches check_branches(const SpecCache& c, const Tensor& slots, const Tensor& epochs, int64_t first,
                        const Tensor& tokens, const OptTensor& parents, const OptTensor& counts) {
  const int64_t B = check_slots(c, slots), C = c.d.branches;
  SSD_CHECK(tokens.dim() == 3, "tokens: got ", tokens.dim(), " dimensions, wanted 3");
  const int64_t n = tokens.size(2);
  SSD_CHECK(first >= 0 && first + n <= c.d.nodes, "tokens: got nodes ", first, " to ", first + n, ", wanted at most ",
            c.d.nodes);
  Branches a{slots.const_data_ptr<int64_t>(),
             in<int64_t>(epochs, "epochs", {B}),
             in<int64_t>(tokens, "tokens", {B, C, n}),
             in<int8_t>(parents, "parents", {B, C, n}),
             in<int32_t>(counts, "counts", {B, C}),
             B,
             n};
  for (int64_t i = 0; i < B; ++i) {
    const int64_t posted = int64_t(ssd::load_acquire(c.latest + a.slot[i]));
    SSD_CHECK(a.epoch[i] >= 1 && a.epoch[i] <= posted + 1, "epochs: got ", a.epoch[i], ", wanted at most ", posted + 1,
              ", the one after the newest outcome");
  }
  return a;
}

// Number of nodes that this call brings for branch b of row i; checks their ids and parents.
int64_t check_branch(const SpecCache& c, const Branches& a, int64_t i, int64_t b, int64_t first) {
  const int64_t at = i * c.d.branches + b, n = a.counts ? a.counts[at] : a.n;
  SSD_CHECK(n >= 0 && n <= a.n, "counts: got ", n, ", wanted 0 to ", a.n);
  check_ids(c, a.tokens + at * a.n, n, "tokens");
  for (int64_t j = 0; a.parents && j < n; ++j)
    SSD_CHECK(a.parents[at * a.n + j] >= -1 && a.parents[at * a.n + j] < first + j, "parents: got ",
              int(a.parents[at * a.n + j]), " for node ", first + j, ", wanted -1 or a node before it");
  return n;
}

int64_t current_rows(const SpecCache& c, const Branches& a) {
  int64_t n = 0;
  for (int64_t i = 0; i < a.B; ++i) n += ssd::load_relaxed(c.latest + a.slot[i]) + 1 == uint64_t(a.epoch[i]);
  return n;
}

int64_t publish(const Tensor& cache, const Tensor& slots, const Tensor& epochs, const Tensor& keys,
                const Tensor& tokens, const OptTensor& parents, const OptTensor& counts, int64_t kind) {
  SpecCache c = open(cache);
  SSD_CHECK(kind >= 0 && kind <= 2, "kind: got ", kind, ", wanted 0, 1 or 2");
  const Branches a = check_branches(c, slots, epochs, 0, tokens, parents, counts);
  const int64_t C = c.d.branches, *key = in<int64_t>(keys, "keys", {a.B, C});
  for (int64_t i = 0; i < a.B; ++i) {
    for (int64_t slab = 0; slab < 2; ++slab) {
      const int64_t held = int64_t(ssd::load_relaxed(c.ready + c.in_slab(slab, a.slot[i])));
      SSD_CHECK(a.epoch[i] > held, "epochs: got ", a.epoch[i], " for slot ", a.slot[i], ", wanted more than ", held,
                ", which is published");
    }
    for (int64_t b = 0; b < C; ++b) {
      const int64_t k = key[i * C + b];
      if (k < 0) continue;
      SSD_CHECK((k >> 32) <= c.d.nodes && (k & 0xffffffff) < c.d.vocab, "keys: got node ", (k >> 32) - 1, " and token ",
                k & 0xffffffff, ", wanted at most node ", c.d.nodes - 1, " and token ", c.d.vocab - 1);
      check_branch(c, a, i, b, 0);
    }
  }
  for (int64_t i = 0; i < a.B; ++i) {
    const int64_t slab = c.standby(a.slot[i]), start = c.branch_at(slab, a.slot[i], 0);
    for (int64_t b = 0; b < C; ++b) {
      const int64_t at = i * C + b, n = key[at] < 0 ? 0 : a.counts ? a.counts[at] : a.n;
      c.write_nodes(start + b, 0, n, a.tokens + at * a.n, a.parents ? a.parents + at * a.n : nullptr);
      c.open_branch(start + b, key[at], n);
    }
    c.publish_slab(slab, a.slot[i], uint64_t(a.epoch[i]), int32_t(kind));
  }
  return current_rows(c, a);
}

int64_t extend(const Tensor& cache, const Tensor& slots, const Tensor& epochs, int64_t first, const Tensor& tokens,
               const OptTensor& parents, const OptTensor& counts) {
  SpecCache c = open(cache);
  const Branches a = check_branches(c, slots, epochs, first, tokens, parents, counts);
  const int64_t C = c.d.branches;
  for (int64_t i = 0; i < a.B; ++i) {
    const int64_t slab = c.slab_of(a.slot[i], uint64_t(a.epoch[i]));
    SSD_CHECK(slab >= 0, "epochs: got ", a.epoch[i], " for slot ", a.slot[i], ", wanted a published epoch");
    for (int64_t b = 0; b < C; ++b) {
      const int64_t at = c.branch_at(slab, a.slot[i], b), stand = ssd::load_relaxed(c.depth_ready + at);
      if (c.keys[at] < 0) continue;
      SSD_CHECK(!check_branch(c, a, i, b, first) || stand == first, "first: got ", first, " for branch ", b,
                " of slot ", a.slot[i], ", wanted ", stand, ", its nodes so far");
    }
  }
  for (int64_t i = 0; i < a.B; ++i) {
    const int64_t start = c.branch_at(c.slab_of(a.slot[i], uint64_t(a.epoch[i])), a.slot[i], 0);
    for (int64_t b = 0; b < C; ++b) {
      const int64_t at = i * C + b, n = c.keys[start + b] < 0 ? 0 : a.counts ? a.counts[at] : a.n;
      if (!n) continue;
      c.write_nodes(start + b, first, n, a.tokens + at * a.n, a.parents ? a.parents + at * a.n : nullptr);
      c.extend_branch(start + b, first + n);
    }
  }
  return current_rows(c, a);
}

int64_t wait_outcomes(const Tensor& cache, const Tensor& slots, const Tensor& seen, int64_t timeout_us,
                      const Tensor& records) {
  SpecCache c = open(cache);
  const int64_t B = check_slots(c, slots), width = ssd::kNext + c.d.nodes;
  const int64_t *slot = slots.const_data_ptr<int64_t>(), *known = in<int64_t>(seen, "seen", {B});
  int64_t* o = out<int64_t>(records, "records", {B, width});
  int64_t news = 0;
  ssd::timed_wait(timeout_us, [&] {
    news = 0;
    for (int64_t i = 0; i < B; ++i) {
      const bool newer = int64_t(ssd::load_relaxed(c.latest + slot[i])) > known[i];
      const bool fresh = newer && c.read_outcome(slot[i], o + i * width);
      if (!fresh) o[i * width + ssd::kEpoch] = 0;
      news += fresh;
    }
    return news > 0;
  });
  return news;
}

bool read_log(const Tensor& cache, int64_t slot, int64_t born, int64_t start, const Tensor& tokens) {
  SpecCache c = open(cache);
  check_slot(c, slot);
  const int64_t n = tokens.numel();
  int64_t* o = out<int64_t>(tokens, "tokens", {n});
  SSD_CHECK(start >= 0 && start + n <= c.d.log, "start: got ", start, " to ", start + n, ", wanted positions up to ",
            c.d.log);
  return c.read_log(slot, uint64_t(born), start, n, o);
}

bool read_features(const Tensor& cache, int64_t slot, int64_t born, int64_t start, const Tensor& features) {
  SpecCache c = open(cache);
  check_slot(c, slot);
  SSD_CHECK(start >= 0 && start < c.d.log, "start: got ", start, ", wanted 0 to ", c.d.log - 1);
  int64_t rows;
  auto* o = const_cast<uint64_t*>(check_features(c, features, c.d.feature_window, &rows));
  return c.read_features(slot, uint64_t(born), start, rows, o);
}

}  // namespace

TORCH_LIBRARY_IMPL(ssd, CPU, m) {
  m.impl("spec_cache_publish", publish);
  m.impl("spec_cache_extend", extend);
  m.impl("spec_cache_wait_outcomes", wait_outcomes);
  m.impl("spec_cache_read_log", read_log);
  m.impl("spec_cache_read_features", read_features);
}
