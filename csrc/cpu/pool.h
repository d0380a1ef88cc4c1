// The threads of one lane. They live between calls and are pinned where cores are named.
//
// Work is SPMD: run(f) calls f(team) once on every thread, and team.barrier() joins them. Results never depend on the
// number of threads.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace ssd {

class Pool;

struct Team {
  Pool* pool;
  int rank, size;
  uint32_t phase;
  void barrier();
  // The part [first, last) of n items that belongs to this thread.
  void share(int64_t n, int64_t& first, int64_t& last) const {
    first = n * rank / size;
    last = n * (rank + 1) / size;
  }
};

class Pool {
 public:
  // One thread per core; the caller is the first. A core below 0 means a thread that is not pinned.
  explicit Pool(const std::vector<int>& cores);
  ~Pool();
  int size() const { return size_; }
  // parts: how many pieces the work can be cut into, or is worth cutting into. For a single one no other thread is
  // woken, since that takes longer than a small operator.
  void run(const std::function<void(Team&)>& f, int64_t parts = INT64_MAX);

 private:
  friend struct Team;
  void work(int rank);
  int size_;
  std::vector<std::thread> threads_;
  const std::function<void(Team&)>* job_ = nullptr;
  alignas(64) std::atomic<uint32_t> generation_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<uint32_t> phase_{0};
  alignas(64) std::atomic<uint32_t> running_{0};
  std::atomic<bool> stop_{false};
};

// The calling thread's pool. A lane makes its own with bind; any other thread gets one of its own, on every core that
// the process may use. Threads share no pool.
Pool& pool();
void bind(const std::vector<int>& cores);
const std::vector<int>& allowed_cores();  // those of the process when the library was loaded

}  // namespace ssd
