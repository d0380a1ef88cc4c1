// Selection of the k best and of the nucleus without sorting, on keys whose ascending order is the order of the tokens:
// greatest score first, lowest id first among equals.
#pragma once
#include <cstdint>

namespace ssd {

uint64_t* key_scratch(int64_t n);  // of this thread, at least n
float* float_scratch(int slot, int64_t n);  // of this thread, slot 0 or 1
uint64_t keep_smallest(uint64_t* keys, int64_t n, int64_t k);  // moves the k smallest to the front; returns the k-th

// The last key of the shortest ascending prefix whose mass reaches need, or the greatest key if none does. O(n).
uint64_t nucleus(uint64_t* keys, int64_t n, double need, double (*mass)(const uint64_t*, int64_t));

}  // namespace ssd
