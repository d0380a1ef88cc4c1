// The speculation cache and the mailbox: where the verify lane and the draft lane of a slot meet.
// Plain C++ on one preallocated block of memory; docs/protocol.md argues why it is right.
//
// Node -1 is the root of a speculation, i its token i; parents come before their children.
// An epoch is one outcome of a slot. Epochs start at 1 and never restart.
// A word has one writer, so loads and stores are enough: memory that is mapped over PCIe may offer no more.
#pragma once
#include <atomic>
#include <cstdint>
#ifdef __CUDACC__
#include <cuda/atomic>
#endif

#include "host_device.h"

namespace ssd {

#ifdef __CUDA_ARCH__
template <class T> using AtomicRef = ::cuda::atomic_ref<T, ::cuda::thread_scope_system>;
#define SSD_ORDER(order) ::cuda::std::memory_order_##order
#else
template <class T> using AtomicRef = std::atomic_ref<T>;
#define SSD_ORDER(order) std::memory_order_##order
#endif
template <class T> SSD_HD T load_acquire(T* p) { return AtomicRef<T>(*p).load(SSD_ORDER(acquire)); }
template <class T> SSD_HD T load_relaxed(T* p) { return AtomicRef<T>(*p).load(SSD_ORDER(relaxed)); }
template <class T> SSD_HD void store_release(T* p, T v) { AtomicRef<T>(*p).store(v, SSD_ORDER(release)); }
template <class T> SSD_HD void store_relaxed(T* p, T v) { AtomicRef<T>(*p).store(v, SSD_ORDER(relaxed)); }

// Sizes of a cache, in the order in which the operators take them.
struct SpecSizes {
  int64_t slots;           // S, sequences
  int64_t branches;        // C, outcomes prepared for a slot and epoch
  int64_t nodes;           // N, tokens of a branch
  int64_t fan_out;         // F, candidate ids kept for a node
  int64_t log;             // L, confirmed tokens of a sequence
  int64_t vocab;           // V, an upper bound of token ids
  int64_t feature_words;   // 8-byte words of a feature row, 0: no features
  int64_t feature_window;  // newest log positions whose features are kept
  int64_t q_width;         // draft probabilities kept for a node, 0: none
};
inline constexpr int kSpecSizes = 9;

// The int64 words of an outcome record; one pack_key(parent, token) follows for each node that the next verification
// takes.
enum SpecField {
  kEpoch,     // its epoch, 0 while it is written
  kOwner,     // who holds the slot, -1: nobody
  kBorn,      // the epoch at which the owner came, which names this life of the slot
  kNode,      // deepest accepted node, -1: the root
  kToken,     // bonus token
  kBranch,    // branch adopted, -1: a miss
  kTaken,     // nodes that the next verification takes, of the branch or else of a fallback
  kLength,    // confirmed tokens in the log, this outcome's included
  kNext
};

// The sections of the block: name, type, elements. The line above a group says who writes it.
// ssd/runtime/lanes/speculation_cache.py names the same sections.
#define SSD_SPEC_SECTIONS(X)                                     \
  X(header, int64_t, 16) /* magic, sizes */                      \
  /* verify lane, private */                                     \
  X(round, int64_t, S)  /* the epoch in progress */              \
  X(owner, int64_t, S)                                           \
  X(length, int64_t, S)                                          \
  /* verify lane, read by the draft lane: the mailbox */         \
  X(active, uint32_t, S) /* the slab that verification reads */  \
  X(latest, uint64_t, S) /* epoch of the newest outcome */       \
  X(born, uint64_t, S)   /* life that the log belongs to */      \
  X(claim, uint64_t, S)  /* log positions below have features */ \
  X(record, int64_t, 2 * S * (kNext + N))                        \
  X(log, int32_t, S* d.log)                                      \
  X(features, uint64_t, S* d.feature_window* d.feature_words)    \
  /* draft lane, read by the verify lane: the two slabs */       \
  X(ready, uint64_t, 2 * S) /* the epoch that a slab answers */  \
  X(kind, int32_t, 2 * S)   /* how its branches were drafted */  \
  X(depth_ready, int32_t, 2 * S * C) /* nodes visible */         \
  X(keys, int64_t, 2 * S * C)                                    \
  X(tokens, int32_t, 2 * S * C * N)                              \
  X(parents, int8_t, 2 * S * C * N)                              \
  X(q, float, 2 * S * C * N * d.q_width)                         \
  /* draft lane, private */                                      \
  X(candidates, int32_t, 2 * S * C * N * d.fan_out)

#define SSD_COUNT(name, type, n) +1
inline constexpr int kSpecSections = 0 SSD_SPEC_SECTIONS(SSD_COUNT);
#undef SSD_COUNT
inline constexpr int64_t kSpecMagic = 0x31454843'43455053;  // "SPECCHE1"

// Byte offsets of the sections, 64-byte aligned; the last entry is the size of the block.
SSD_HD void spec_layout(const SpecSizes& d, int64_t (&offsets)[kSpecSections + 1]) {
  const int64_t S = d.slots, C = d.branches, N = d.nodes;
  int64_t at = 0;
  int i = 0;
#define SSD_PLACE(name, type, n) \
  offsets[i++] = at;             \
  at += (int64_t(n) * int64_t(sizeof(type)) + 63) / 64 * 64;
  SSD_SPEC_SECTIONS(SSD_PLACE)
#undef SSD_PLACE
  offsets[i] = at;
}

// One non-negative word for a node and a token.
SSD_HD constexpr int64_t pack_key(int64_t node, int64_t token) { return (node + 1) << 32 | token; }

struct Match { int32_t branch, nodes; };  // branch -1: a miss

struct SpecCache {
  SpecSizes d;
#define SSD_POINTER(name, type, n) type* name;
  SSD_SPEC_SECTIONS(SSD_POINTER)
#undef SSD_POINTER

  SSD_HD SpecCache(void* base, const SpecSizes& sizes) : d(sizes) {
    int64_t offsets[kSpecSections + 1];
    spec_layout(d, offsets);
    int i = 0;
#define SSD_BIND(name, type, n) name = reinterpret_cast<type*>(static_cast<char*>(base) + offsets[i++]);
    SSD_SPEC_SECTIONS(SSD_BIND)
#undef SSD_BIND
  }

  SSD_HD int64_t in_slab(int64_t slab, int64_t slot) const { return slab * d.slots + slot; }
  SSD_HD int64_t branch_at(int64_t slab, int64_t slot, int64_t b) const { return in_slab(slab, slot) * d.branches + b; }
  SSD_HD int64_t* record_of(uint64_t epoch, int64_t slot) const {
    return record + in_slab(int64_t(epoch & 1), slot) * (kNext + d.nodes);
  }

  // ---- draft lane: fill the standby slab, publish, extend ----

  // The slab to fill; it stays the same from the outcome before an epoch until that epoch is published.
  SSD_HD int64_t standby(int64_t slot) const { return 1 - int64_t(load_acquire(active + slot)); }
  // The slab that holds a published epoch, or -1.
  SSD_HD int64_t slab_of(int64_t slot, uint64_t epoch) const {
    for (int64_t slab = 0; slab < 2; ++slab)
      if (load_relaxed(ready + in_slab(slab, slot)) == epoch) return slab;
    return -1;
  }
  // Writes nodes [first, first + n) of a branch; without parents they form a chain.
  SSD_HD void write_nodes(int64_t branch, int64_t first, int64_t n, const int64_t* ids, const int8_t* above) const {
    for (int64_t i = 0; i < n; ++i) {
      tokens[branch * d.nodes + first + i] = int32_t(ids[i]);
      parents[branch * d.nodes + first + i] = above ? above[i] : int8_t(first + i - 1);
    }
  }
  // Opens a branch of the standby slab, whose first nodes are written already; call it before publish_slab.
  SSD_HD void open_branch(int64_t branch, int64_t key, int64_t n) const {
    keys[branch] = key;
    store_relaxed(depth_ready + branch, int32_t(n));
  }
  SSD_HD void publish_slab(int64_t slab, int64_t slot, uint64_t epoch, int32_t how) const {
    kind[in_slab(slab, slot)] = how;
    store_release(ready + in_slab(slab, slot), epoch);
  }
  // Makes the nodes below n of a published branch visible; call it after write_nodes.
  SSD_HD void extend_branch(int64_t branch, int64_t n) const { store_release(depth_ready + branch, int32_t(n)); }

  // ---- verify lane: match, flip, post ----

  SSD_HD bool is_ready(int64_t slot) const {
    int64_t slab = 1 - int64_t(load_relaxed(active + slot));
    return load_acquire(ready + in_slab(slab, slot)) == uint64_t(round[slot]);
  }
  SSD_HD int64_t find(int64_t slab, int64_t slot, int64_t key) const {
    const int64_t* row = keys + branch_at(slab, slot, 0);
    for (int64_t b = 0; b < d.branches; ++b)
      if (row[b] == key) return b;
    return -1;
  }
  // Looks the outcome up and, on a hit, makes the standby slab the active one.
  SSD_HD Match match_swap(int64_t slot, int64_t node, int64_t token) const {
    if (!is_ready(slot)) return {-1, 0};
    int64_t slab = 1 - int64_t(load_relaxed(active + slot));
    int64_t b = find(slab, slot, pack_key(node, token));
    if (b < 0) return {-1, 0};
    int32_t nodes = load_acquire(depth_ready + branch_at(slab, slot, b));
    if (nodes < 1) return {-1, 0};
    store_release(active + slot, uint32_t(slab));
    return {int32_t(b), nodes};
  }

  // Appends confirmed tokens to the log; the last n_rows of them have features, row pick[i] of rows (row i without
  // pick). Every element is released, so whoever reads it also sees the born and the claim stored before.
  SSD_HD void append(int64_t slot, const int64_t* ids, int64_t n, const uint64_t* rows, int64_t n_rows,
                     const int64_t* pick) const {
    int64_t end = length[slot] + n;
    for (int64_t i = 0; i < n; ++i) store_release(log + slot * d.log + length[slot] + i, int32_t(ids[i]));
    length[slot] = end;
    if (!d.feature_words) return;
    store_release(claim + slot, uint64_t(end));
    for (int64_t i = n_rows > d.feature_window ? n_rows - d.feature_window : 0; i < n_rows; ++i)
      for (int64_t w = 0; w < d.feature_words; ++w)
        store_release(feature_row(slot, end - n_rows + i) + w, rows[(pick ? pick[i] : i) * d.feature_words + w]);
  }
  // Posts the outcome of the round in progress and goes on to the next, which takes n nodes, given as words of the
  // record. Every word is released after kEpoch was cleared, so a reader that meets one finds kEpoch changed.
  SSD_HD void post(int64_t slot, int64_t node, int64_t token, int64_t branch, const int64_t* next, int64_t n) const {
    uint64_t epoch = uint64_t(round[slot]);
    int64_t* r = record_of(epoch, slot);
    store_relaxed(r + kEpoch, int64_t(0));
    const int64_t fields[kNext] = {0, owner[slot], int64_t(load_relaxed(born + slot)), node, token, branch,
                                   n, length[slot]};
    for (int i = kOwner; i < kNext; ++i) store_release(r + i, fields[i]);
    for (int64_t i = 0; i < n; ++i) store_release(r + kNext + i, next[i]);
    store_release(r + kEpoch, int64_t(epoch));
    store_release(latest + slot, epoch);
    round[slot] = int64_t(epoch) + 1;
  }
  // Begins a new life of the slot. It consumes an epoch, the one that the draft lane may still be preparing for the
  // last owner, so that branch, however late, answers no round of the new one.
  SSD_HD void assign(int64_t slot, int64_t who, const int64_t* ids, int64_t n, const uint64_t* rows,
                     int64_t n_rows) const {
    store_relaxed(born + slot, uint64_t(round[slot]));
    owner[slot] = who;
    length[slot] = 0;
    append(slot, ids, n, rows, n_rows, nullptr);
    post(slot, -1, n ? ids[n - 1] : 0, -1, nullptr, 0);
  }

  // ---- draft lane: outcomes and the log ----

  // Copies the newest outcome. Returns false if there is none, or if the verify lane posted two more meanwhile.
  SSD_HD bool read_outcome(int64_t slot, int64_t* out) const {
    uint64_t epoch = load_acquire(latest + slot);
    if (!epoch) return false;
    int64_t* r = record_of(epoch, slot);
    for (int64_t i = kOwner; i < kNext + d.nodes; ++i) out[i] = load_acquire(r + i);
    out[kEpoch] = int64_t(epoch);
    return load_relaxed(r + kEpoch) == int64_t(epoch);
  }
  // Copies log positions [start, start + n) of a life. Returns false if that life is over.
  SSD_HD bool read_log(int64_t slot, uint64_t life, int64_t start, int64_t n, int64_t* out) const {
    for (int64_t i = 0; i < n; ++i) out[i] = load_acquire(log + slot * d.log + start + i);
    return load_relaxed(born + slot) == life;
  }
  // Copies features likewise. Also returns false if newer positions have taken their place.
  SSD_HD bool read_features(int64_t slot, uint64_t life, int64_t start, int64_t n, uint64_t* out) const {
    for (int64_t i = 0; i < n; ++i)
      for (int64_t w = 0; w < d.feature_words; ++w)
        out[i * d.feature_words + w] = load_acquire(feature_row(slot, start + i) + w);
    uint64_t end = load_acquire(claim + slot);  // before born: the claim of the next life comes after its born
    return load_relaxed(born + slot) == life && end <= uint64_t(start + d.feature_window);
  }
  SSD_HD uint64_t* feature_row(int64_t slot, int64_t position) const {
    return features + (slot * d.feature_window + position % d.feature_window) * d.feature_words;
  }
};

}  // namespace ssd
