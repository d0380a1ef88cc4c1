#include "select.h"

#include <algorithm>
#include <vector>

namespace ssd {

uint64_t* key_scratch(int64_t n) {
  thread_local std::vector<uint64_t> keys;
  if (int64_t(keys.size()) < n) keys.resize(n);
  return keys.data();
}

float* float_scratch(int slot, int64_t n) {
  thread_local std::vector<float> floats[2];
  if (int64_t(floats[slot].size()) < n) floats[slot].resize(n);
  return floats[slot].data();
}

uint64_t keep_smallest(uint64_t* keys, int64_t n, int64_t k) {
  std::nth_element(keys, keys + k - 1, keys + n);
  return keys[k - 1];
}

uint64_t nucleus(uint64_t* keys, int64_t n, double need, double (*mass)(const uint64_t*, int64_t)) {
  uint64_t *first = keys, *last = keys + n;  // the answer is in [first, last)
  while (last - first > 1) {
    uint64_t* mid = first + (last - first) / 2;
    std::nth_element(first, mid, last);
    double left = mass(first, mid - first);
    if (left >= need) {
      last = mid;
    } else {
      need -= left;
      first = mid;
    }
  }
  return *first;
}

}  // namespace ssd
