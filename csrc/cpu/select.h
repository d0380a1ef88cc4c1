// Selects the k best tokens, or the nucleus, without sorting. Keys in ascending order stand for tokens from the
// greatest score down, lowest id first among equals.
#pragma once
#include <cstdint>

namespace ssd {

// This thread's scratch memory for at least n elements; slot 0 or 1.
uint64_t* key_scratch(int64_t n);
float* float_scratch(int slot, int64_t n);

// Moves the k smallest keys to the front and returns the k-th.
uint64_t keep_smallest(uint64_t* keys, int64_t n, int64_t k);

// The last key of the shortest ascending prefix whose mass reaches need, or the greatest key if none does. O(n).
uint64_t nucleus(uint64_t* keys, int64_t n, double need, double (*mass)(const uint64_t*, int64_t));

}  // namespace ssd
