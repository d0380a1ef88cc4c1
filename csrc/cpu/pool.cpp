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

// Read when the library is loaded: a thread that is pinned later must not narrow what others may use.
const std::vector<int> allowed = [] {
  std::vector<int> cores;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0)
    for (int c = 0; c < CPU_SETSIZE; ++c)
      if (CPU_ISSET(c, &set)) cores.push_back(c);
  if (cores.empty()) cores.resize(std::max(1u, std::thread::hardware_concurrency()), -1);
  return cores;
}();

// Pins the thread to a core, or for -1 lets it run on every core of the process.
void pin(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int c : core < 0 ? allowed : std::vector<int>{core})
    if (c >= 0) CPU_SET(c, &set);
  if (CPU_COUNT(&set)) sched_setaffinity(0, sizeof set, &set);
}

thread_local std::unique_ptr<Pool> own;
thread_local bool pinned = false;  // whether this file pinned the thread

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
  const int first = cores.empty() ? -1 : cores[0];
  if (first >= 0 || pinned) pin(first);
  pinned = first >= 0;
  for (int r = 1; r < size_; ++r) threads_.emplace_back([this, r, core = cores[r]] { pin(core), work(r); });
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

void Pool::run(const std::function<void(Team&)>& f, int64_t parts) {
  Team team{this, 0, parts > 1 ? size_ : 1, phase_.load(std::memory_order_relaxed)};
  if (team.size == 1) return f(team);
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

const std::vector<int>& allowed_cores() { return allowed; }

Pool& pool() {
  if (!own) own = std::make_unique<Pool>(std::vector<int>(allowed.size(), -1));
  return *own;
}

}  // namespace ssd
