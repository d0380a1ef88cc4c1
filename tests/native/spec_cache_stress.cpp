// Two lanes at full speed on one speculation cache; every value is checked against where it must come from.
// Compiled by tests/runtime/lanes/test_protocol_stress.py with -fsanitize=thread against a copy of the header whose
// atomic operations call stress_delay() first. Usage: stress SWAPS FAULT SEED
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <thread>

int planted = 0;  // the fault to run with, 0: none

#define UNSEEN __attribute__((no_sanitize("thread")))  // a thread's own random numbers

struct Random {
  uint64_t state;
  UNSEEN uint64_t next() {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state >> 11;
  }
  UNSEEN bool one_in(uint64_t n) { return next() % n == 0; }
};
thread_local Random rng{1};

UNSEEN void stress_delay() {
  uint64_t r = rng.next();
  if (r % 64) return;
  for (uint64_t i = 0; i < (r >> 12) % 64; ++i) asm volatile("");
  if (r % 4096 == 0) std::this_thread::yield();
  if (r % 16384 == 64) std::this_thread::sleep_for(std::chrono::microseconds(1));
}

#include <ssd/spec_cache.h>

using namespace ssd;

#define CHECK(cond)                                                     \
  do {                                                                  \
    if (!(cond)) {                                                      \
      std::fprintf(stderr, "INVARIANT %s, line %d\n", #cond, __LINE__); \
      std::_Exit(1);                                                    \
    }                                                                   \
  } while (0)

constexpr SpecSizes kSizes{2, 3, 3, 0, 48, 1 << 30, 1, 8, 0};
constexpr int64_t S = kSizes.slots, C = kSizes.branches, N = kSizes.nodes, W = kSizes.feature_words;

int64_t mix(int64_t a, int64_t b, int64_t c) {
  uint64_t x = uint64_t(a) * 0x9e3779b97f4a7c15 + uint64_t(b) * 0xbf58476d1ce4e5b9 + uint64_t(c) * 0x94d049bb133111eb;
  return int64_t((x ^ x >> 29) * 0xff51afd7ed558ccd >> 34);  // 30 bits
}
int64_t spec_token(int64_t life, int64_t epoch, int64_t b, int64_t i) { return mix(life * S, epoch, b * N + i); }
int64_t log_token(int64_t life, int64_t position) { return mix(life, position, 77); }
uint64_t feature(int64_t life, int64_t position, int64_t w) { return uint64_t(mix(life, position, 99 + w)) << 20; }

bool stop = false;  // atomic access only
int64_t late = 0, mixed = 0, torn = 0, skipped = 0;  // draft lane: how often the rare paths were taken

void confirm(SpecCache& c, int64_t slot, int64_t life, int64_t n, bool first) {
  int64_t ids[48], at = first ? 0 : c.length[slot];
  uint64_t rows[48 * W];
  for (int64_t i = 0; i < n; ++i) {
    ids[i] = log_token(life, at + i);
    for (int64_t w = 0; w < W; ++w) rows[i * W + w] = feature(life, at + i, w);
  }
  if (first) c.assign(slot, life, ids, n, rows, n);
  else c.append(slot, ids, n, rows, n, nullptr);
}

void verify_lane(SpecCache c, int64_t swaps, uint64_t seed) {
  rng.state = seed;
  struct { int64_t life = 0, epoch = 0, branch = -1, taken = 0; } held[S];
  auto assign = [&](int64_t s) {
    if (rng.one_in(2)) c.assign(s, -1, nullptr, 0, nullptr, 0);  // free for an epoch
    held[s] = {c.round[s], 0, -1, 0};
    confirm(c, s, c.round[s], 1 + int64_t(rng.next() % 8), true);
  };
  for (int64_t s = 0; s < S; ++s) assign(s);
  for (int64_t done = 0; done < swaps;) {
    for (int64_t s = 0; s < S; ++s) {
      auto& h = held[s];
      const int64_t epoch = c.round[s];
      // the forward reads its inputs in place
      for (int64_t i = 0; i < h.taken; ++i) {
        const int64_t at = c.branch_at(c.active[s], s, h.branch) * N + i;
        CHECK(c.tokens[at] == spec_token(h.life, h.epoch, h.branch, i) && c.parents[at] == i - 1);
      }
      // now and then the draft has time, or none at all
      if (!rng.one_in(4))
        for (int spin = 0; spin < 4000 && !c.is_ready(s); ++spin)
          if (spin % 64 == 63) std::this_thread::yield();
      const int64_t b = int64_t(rng.next() % (C + 1));  // C: an outcome that nobody predicted
      const int64_t token = mix(epoch, b, 5);
      Match m = c.match_swap(s, b, token);
      if (m.branch >= 0) {
        CHECK(m.branch == b && b < C && m.nodes >= 1 && m.nodes <= N);
        CHECK(c.kind[c.in_slab(c.active[s], s)] == int32_t(epoch));
        h = {h.life, epoch, m.branch, m.nodes};
        ++done;
      } else {
        h = {h.life, 0, -1, 0};
      }
      int64_t next[N];
      for (int64_t i = 0; i < h.taken; ++i) next[i] = mix(epoch, m.branch, i);
      confirm(c, s, h.life, 1 + int64_t(rng.next() % 3), false);
      c.post(s, b, token, m.branch, next, h.taken);
      if (c.length[s] > 44 || rng.one_in(64)) assign(s);
    }
  }
  std::printf("swaps %lld epochs %lld %lld\n", (long long)swaps, (long long)c.round[0], (long long)c.round[1]);
  store_release(&stop, true);
}

void read_mailbox(SpecCache& c, int64_t s, const int64_t* r) {
  const int64_t life = r[kBorn], length = r[kLength];
  CHECK(life <= r[kEpoch] && (r[kOwner] == life || r[kOwner] == -1));
  if (life == r[kEpoch]) {  // a new owner, or nobody
    CHECK(r[kBranch] == -1 && r[kTaken] == 0 && (length > 0) == (r[kOwner] >= 0));
    CHECK(!length || r[kToken] == log_token(life, length - 1));
  } else {
    CHECK(r[kTaken] >= 0 && r[kTaken] <= N && (r[kTaken] > 0) == (r[kBranch] >= 0));
    CHECK(r[kToken] == mix(r[kEpoch], r[kNode], 5) && (r[kBranch] == -1 || r[kBranch] == r[kNode]));
    for (int64_t i = 0; i < r[kTaken]; ++i) CHECK(r[kNext + i] == mix(r[kEpoch], r[kBranch], i));
  }
  if (rng.one_in(4)) {
    int64_t ids[64];
    const int64_t start = length ? int64_t(rng.next() % uint64_t(length)) : 0;
    if (c.read_log(s, uint64_t(life), start, length - start, ids))
      for (int64_t i = start; i < length; ++i) CHECK(ids[i - start] == log_token(life, i));
    else ++mixed;
    uint64_t rows[8 * W];
    const int64_t n = length < 8 ? length : 8, from = length - n;
    if (c.read_features(s, uint64_t(life), from, n, rows)) {
      for (int64_t i = 0; i < n * W; ++i) CHECK(rows[i] == feature(life, from + i / W, i % W));
    }
  }
}

void draft_lane(SpecCache c, uint64_t seed) {
  rng.state = seed;
  uint64_t seen[S] = {};
  int64_t r[kNext + N];
  while (!load_acquire(&stop)) {
    for (int64_t s = 0; s < S; ++s) {
      if (load_relaxed(c.latest + s) == seen[s]) continue;
      if (!c.read_outcome(s, r)) {
        ++torn;
        continue;
      }
      CHECK(uint64_t(r[kEpoch]) > seen[s]);
      skipped += uint64_t(r[kEpoch]) > seen[s] + 1;
      seen[s] = uint64_t(r[kEpoch]);
      read_mailbox(c, s, r);
      const uint64_t epoch = seen[s] + 1;
      const int64_t slab = c.standby(s), life = r[kBorn];
      int64_t ids[N];
      auto write = [&](int64_t b, int64_t first, int64_t n) {
        for (int64_t i = 0; i < n; ++i) ids[i] = spec_token(life, int64_t(epoch), b, first + i);
        c.write_nodes(c.branch_at(slab, s, b), first, n, ids, nullptr);
      };
      for (int64_t b = 0; b < C; ++b) {
        write(b, 0, 1);
        c.open_branch(c.branch_at(slab, s, b), pack_key(b, mix(int64_t(epoch), b, 5)), 1);
      }
      c.publish_slab(slab, s, epoch, int32_t(epoch));
      // deeper, in time, after the flip or never
      for (int64_t depth = 1; depth < N && !rng.one_in(4); ++depth)
        for (int64_t b = 0; b < C; ++b) {
          write(b, depth, 1);
          c.extend_branch(c.branch_at(slab, s, b), depth + 1);
        }
      late += load_relaxed(c.latest + s) >= epoch;
    }
    if (rng.one_in(64)) std::this_thread::yield();
  }
  std::printf("late %lld skipped %lld torn %lld mixed %lld\n", (long long)late, (long long)skipped, (long long)torn,
              (long long)mixed);
}

int main(int argc, char** argv) {
  const int64_t swaps = argc > 1 ? std::atoll(argv[1]) : 1000;
  planted = argc > 2 ? std::atoi(argv[2]) : 0;
  const uint64_t seed = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1;
  int64_t offsets[kSpecSections + 1];
  spec_layout(kSizes, offsets);
  void* base = std::aligned_alloc(64, size_t(offsets[kSpecSections]));
  __builtin_memset(base, 0, size_t(offsets[kSpecSections]));
  SpecCache c(base, kSizes);
  for (int64_t s = 0; s < S; ++s) c.round[s] = 1;
  std::thread draft(draft_lane, c, seed * 2 + 1);
  verify_lane(c, swaps, seed * 2 + 2);
  draft.join();
  std::puts("ok");
  std::free(base);
}
