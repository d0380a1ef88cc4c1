#include "pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
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

using std::chrono::steady_clock;
constexpr std::chrono::microseconds kSpin{50};  // longer than most waits inside a step
constexpr std::chrono::milliseconds kTurn{1};  // shorter than the turns that a system gives to threads

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
thread_local std::vector<int> bound;  // its cores, where bind named them
thread_local bool pinned = false;  // whether this file pinned the thread

// A forked process has none of the threads: its pool is made anew, and the parent's memory is left as it lies.
const int forks = pthread_atfork(nullptr, nullptr, [] { (void)own.release(); });

constexpr int kBits = 24;  // of Range::taken: items
constexpr uint64_t kItems = (uint64_t(1) << kBits) - 1;

}  // namespace

bool Team::begin(int64_t n) {
  if (n <= 0) return false;
  items_ += n, from_ = rank_, mine_ = 0;
  const bool over = int32_t(pool_.ended_.load(std::memory_order_acquire) - uint32_t(loop_)) > 0;
  loop_ += over;
  return !over;
}

bool Team::take(int64_t n, int64_t group, int64_t& first, int64_t& last) {
  for (int tried = 0; tried < size_; ++tried, from_ = from_ + 1 < size_ ? from_ + 1 : 0) {
    const int64_t begin = n * from_ / size_, count = n * (from_ + 1) / size_ - begin;
    auto& word = pool_.ranges_[from_].taken;
    for (uint64_t now = word.load(std::memory_order_relaxed), mark = loop_ << kBits;;) {
      const int64_t ahead = int64_t((now & ~kItems) - mark), next = ahead ? 0 : now & kItems;
      if (ahead > 0 || next == count) break;  // the loop is over, or the range is empty
      int64_t n_taken = std::min(group, count - next);
      if (pool_.shuffle_) n_taken = 1 + dawdle() % n_taken;
      if (!word.compare_exchange_weak(now, mark + next + n_taken, std::memory_order_relaxed)) continue;
      first = begin + next, last = first + n_taken, mine_ += n_taken;
      if (pool_.shuffle_) from_ = dawdle() % size_;
      return true;
    }
  }
  return false;
}

int64_t Team::dawdle() {
  chance_ = (chance_ + pool_.shuffle_) * 6364136223846793005u + 1442695040888963407u;
  const int64_t r = chance_ >> 40;
  if (r % 97 == 0) std::this_thread::sleep_for(std::chrono::microseconds(100));
  for (int64_t i = r % 389; i > 0; --i) pause();
  return r;
}

void Team::join() {
  const uint32_t loop = uint32_t(loop_++);
  if (mine_ && pool_.done_.fetch_add(mine_, std::memory_order_acq_rel) + mine_ == items_) {
    pool_.ended_ = loop + 1;
    pool_.wake(pool_.ended_);
  }
  for (uint32_t now; int32_t((now = pool_.ended_.load(std::memory_order_acquire)) - loop) <= 0;)
    pool_.wait(pool_.ended_, now);
  // Where another process waits for this core, lose it here: lost within an item, it would keep all threads waiting.
  static thread_local steady_clock::time_point turn;
  if (steady_clock::now() - turn < kTurn) return;
  sched_yield();
  turn = steady_clock::now();
}

// Waits until the word is no longer `old`, or returns early: spins, then sleeps and leaves the core to others.
void Pool::wait(const std::atomic<uint32_t>& word, uint32_t old) {
  const auto end = steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 32; ++i, pause())
      if (word.load(std::memory_order_acquire) != old) return;
  } while (steady_clock::now() < end);
  ++sleepers_;  // before the system reads the word; whoever changes the word reads this afterwards
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, old, nullptr, nullptr, 0);
  --sleepers_;
}

void Pool::wake(const std::atomic<uint32_t>& word) {
  if (sleepers_) syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

Pool::Pool(const std::vector<int>& cores, uint64_t shuffle)
    : size_(std::max<int>(1, cores.size())), shuffle_(shuffle), jobs_(size_), ranges_(size_) {
  const int first = cores.empty() ? -1 : cores[0];
  if (first >= 0 || pinned) pin(first);
  pinned = first >= 0;
  for (int r = 1; r < size_; ++r) threads_.emplace_back([this, r, core = cores[r]] { pin(core), work(r); });
}

Pool::~Pool() {
  stop_ = true;
  ++generation_;
  wake(generation_);
  for (auto& t : threads_) t.join();
}

void Pool::work(int rank) {
  for (uint32_t seen = 0;;) {
    while (generation_ == seen) wait(generation_, seen);
    seen = generation_;
    if (stop_) return;
    Job* job = job_;
    if (!job) continue;
    ++job->inside;  // then job_ is read again: a job that is still the pool's stays until nobody is inside
    if (job_ == job) {
      Team team(*this, rank, size_, job->loop, job->items);
      job->f(team);
    }
    --job->inside;
  }
}

void Pool::run(std::function<void(Team&)> f, int64_t parts) {
  Team team(*this, 0, parts > 1 ? size_ : 1, loop_, items_);
  if (team.size_ == 1) return f(team);
  Job* job = jobs_.data();
  while (job->inside) ++job;
  job->f = std::move(f), job->loop = loop_, job->items = items_;
  job_ = job;
  ++generation_;
  wake(generation_);
  job->f(team);
  job_ = nullptr;
  loop_ = team.loop_, items_ = team.items_;
}

void bind(const std::vector<int>& cores, uint64_t shuffle) {
  bound = cores;
  own.reset();
  own = std::make_unique<Pool>(cores, shuffle);
}

const std::vector<int>& allowed_cores() { return allowed; }

Pool& pool() {
  if (!own) own = std::make_unique<Pool>(bound.empty() ? std::vector<int>(allowed.size(), -1) : bound);
  return *own;
}

}  // namespace ssd
