// The threads of one lane. They live between calls and are pinned where cores are named.
//
// run(f) calls f(team) on every thread that has a core. f is a sequence of loops, team.share(n, ...), whose items go to
// whoever is there: a thread takes those of its own range, then what other threads have left of theirs. Nobody waits
// for a thread that has not come, only for items that one has taken. An item is the same sequence of operations whoever
// takes it, so results depend neither on the number of threads nor on chance.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace ssd {

class Pool;

// How many items a thread takes at once, by the bytes that one of them touches: some microseconds of work, for which
// the others may have to wait.
constexpr int64_t items_of(int64_t bytes) { return bytes < (1 << 15) ? (1 << 16) / (bytes + 1) : 1; }

class Team {
 public:
  // Calls f(first, last) for parts of [0, n) of at most `group` items; returns when all items are done.
  template <class F> void share(int64_t n, int64_t group, F&& f) {
    if (size_ == 1) return f(int64_t(0), n);
    if (!begin(n)) return;
    for (int64_t first, last; take(n, group, first, last);) f(first, last);
    join();
  }
  // Calls f(i) for every item.
  template <class F> void each(int64_t n, int64_t group, F&& f) {
    share(n, group, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) f(i);
    });
  }

 private:
  friend class Pool;
  Team(Pool& pool, int rank, int size, uint64_t loop, uint64_t items)
      : pool_(pool), rank_(rank), size_(size), loop_(loop), items_(items), chance_(loop << 8 | rank) {}
  bool begin(int64_t n);
  bool take(int64_t n, int64_t group, int64_t& first, int64_t& last);
  void join();
  int64_t dawdle();  // waits for a random time; returns a random number
  Pool& pool_;
  const int rank_, size_;
  uint64_t loop_;  // the pool's number for the next loop
  uint64_t items_;  // of all loops so far
  int64_t mine_ = 0;  // items of this loop that this thread has done
  int from_ = 0;  // whose range it takes from
  uint64_t chance_;
};

class Pool {
 public:
  // One thread per core; the caller is the first. A core below 0 means a thread that is not pinned. shuffle: for tests,
  // a seed with which threads dawdle and take random shares; 0 for none.
  explicit Pool(const std::vector<int>& cores, uint64_t shuffle = 0);
  ~Pool();
  int size() const { return size_; }
  // A thread that comes late walks through f after run has returned. So the pool keeps f, which owns what it reads
  // outside of items; what is behind its pointers is read within items only.
  // parts: how many pieces the work can be cut into, or is worth cutting into. For a single one no other thread is
  // woken, since that takes longer than a small operator.
  void run(std::function<void(Team&)> f, int64_t parts = INT64_MAX);

 private:
  friend class Team;
  struct Job {
    std::function<void(Team&)> f;
    uint64_t loop = 0, items = 0;  // the pool's counts when it began
    std::atomic<int> inside = 0;  // threads that read it, not counting the caller
  };
  struct alignas(64) Range {
    std::atomic<uint64_t> taken = 0;  // the number of a loop, and how many items of the range are taken in it
  };
  void work(int rank);
  void wait(const std::atomic<uint32_t>& word, uint32_t old);
  void wake(const std::atomic<uint32_t>& word);
  int size_;
  uint64_t shuffle_, loop_ = 0, items_ = 0;
  std::vector<Job> jobs_;  // one more than there can be late threads
  std::vector<Range> ranges_;  // one per thread
  std::vector<std::thread> threads_;
  alignas(64) std::atomic<uint32_t> generation_{0};  // grows with every job
  std::atomic<Job*> job_{nullptr};
  alignas(64) std::atomic<uint64_t> done_{0};  // items of all loops
  alignas(64) std::atomic<uint32_t> ended_{0};  // loops
  alignas(64) std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
};

// The calling thread's pool. A lane makes its own with bind; any other thread gets one of its own, on every core that
// the process may use. Threads share no pool. In a forked process the calling thread's pool is made anew.
Pool& pool();
void bind(const std::vector<int>& cores, uint64_t shuffle = 0);
const std::vector<int>& allowed_cores();  // those of the process when the library was loaded

}  // namespace ssd
