// A bounded wait: it spins for a moment, then sleeps in small steps, and ends at the deadline at the latest.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>

namespace ssd {

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Calls done() until it is true or timeout_us microseconds have passed, at least once; returns its last answer.
template <class Done>
bool timed_wait(int64_t timeout_us, Done&& done) {
  using namespace std::chrono;
  constexpr auto kSpin = microseconds(50), kStep = microseconds(20);
  constexpr int64_t kLongest = 86'400'000'000;  // a day, so that the clock does not overflow
  if (done()) return true;
  const auto start = steady_clock::now(), end = start + microseconds(std::clamp<int64_t>(timeout_us, 0, kLongest));
  for (auto now = start; now < end; now = steady_clock::now()) {
    if (now - start < kSpin) {
      for (int i = 0; i < 16; ++i) pause_cpu();
    } else {
      std::this_thread::sleep_for(std::min<nanoseconds>(kStep, end - now));
    }
    if (done()) return true;
  }
  return done();
}

}  // namespace ssd
