#include "pool.h"

#include <sched.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ssd {
namespace {

inline void pause() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

constexpr int kSpins = 4000;  // about 50 microseconds: longer than most waits inside a step

// Spins, then sleeps until the word changes from `old`.
void wait_change(const std::atomic<uint32_t>& word, uint32_t old) {
  for (int i = 0; i < kSpins; ++i, pause())
    if (word.load(std::memory_order_acquire) != old) return;
  word.wait(old, std::memory_order_acquire);
}

void pin(int core) {
  if (core < 0) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  sched_setaffinity(0, sizeof set, &set);
}

thread_local std::unique_ptr<Pool> own;

}  // namespace

void Team::barrier() {
  if (size == 1) return;
  if (pool->arrived_.fetch_add(1, std::memory_order_acq_rel) == size - 1) {
    pool->arrived_.store(0, std::memory_order_relaxed);
    pool->phase_.store(++phase, std::memory_order_release);
    pool->phase_.notify_all();
  } else {
    wait_change(pool->phase_, phase++);
  }
}

Pool::Pool(const std::vector<int>& cores) : size_(std::max<int>(1, cores.size())) {
  if (!cores.empty()) pin(cores[0]);
  for (int r = 1; r < size_; ++r)
    threads_.emplace_back([this, r, core = cores[r]] { pin(core), work(r); });
}

Pool::~Pool() {
  stop_ = true;
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (auto& t : threads_) t.join();
}

void Pool::work(int rank) {
  for (uint32_t seen = 0;;) {
    wait_change(generation_, seen++);
    if (stop_) return;
    Team team{this, rank, size_, phase_.load(std::memory_order_relaxed)};
    (*job_)(team);
    if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) running_.notify_all();
  }
}

void Pool::run(const std::function<void(Team&)>& f) {
  Team team{this, 0, size_, phase_.load(std::memory_order_relaxed)};
  if (size_ == 1) return f(team);
  job_ = &f;
  running_.store(size_ - 1, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  f(team);
  for (uint32_t left; (left = running_.load(std::memory_order_acquire)) > 0;) wait_change(running_, left);
}

void bind(const std::vector<int>& cores) {
  own.reset();
  own = std::make_unique<Pool>(cores);
}

Pool& pool() {
  if (!own) {
    cpu_set_t set;
    CPU_ZERO(&set);
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : (int)std::thread::hardware_concurrency();
    own = std::make_unique<Pool>(std::vector<int>(n, -1));
  }
  return *own;
}

}  // namespace ssd
