// The pool under ThreadSanitizer: every item done once, in order of the loops, whoever comes late.
// Compiled by tests/kernels/test_pool_stress.py together with csrc/cpu/pool.cpp. Usage: stress RUNS
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <numeric>

#include "pool.h"

namespace {

void check(bool right, const char* what) {
  if (right) return;
  std::fprintf(stderr, "INVARIANT %s\n", what);
  std::exit(1);
}

// Three loops, each of which reads what others wrote in the one before; memory that the call owns, as operators have.
void run(ssd::Pool& pool, int64_t n, int64_t group) {
  std::vector<int64_t> a(n), b(n), c(n);
  pool.run([n, group, a = a.data(), b = b.data(), c = c.data()](ssd::Team& team) {
    team.each(n, group, [&](int64_t i) { a[i] += i; });
    team.each(0, 1, [&](int64_t) { check(false, "no item"); });
    team.share(n, group, [&](int64_t first, int64_t last) {
      check(first < last && last - first <= group, "group");
      for (int64_t i = first; i < last; ++i) b[i] += a[n - 1 - i];
    });
    team.each(n, group, [&](int64_t i) { c[i] += b[(i + n / 2) % n]; });
  });
  for (int64_t i = 0; i < n; ++i) check(c[i] == n - 1 - (i + n / 2) % n, "each item once, loop after loop");
}

}  // namespace

int main(int, char** argv) {
  for (uint64_t shuffle : {0, 1, 2})
    for (int threads : {2, 3, 5}) {
      ssd::Pool pool(std::vector<int>(threads, -1), shuffle);
      for (int i = 0; i < std::atoi(argv[1]); ++i) {
        run(pool, 1 + i % 70, 1 + i % 3);
        if (i % 50 == 0) usleep(200);  // the threads fall asleep
      }
    }
}
