// Moves cached tokens between slots of a paged cache, in order, in every layer.
//
// A thread owns 16 bytes of every slot of one layer and runs all moves on them itself, so that a move reads what the
// moves before it wrote, whatever the other threads do: chains, cycles and repeated targets mean what they mean when
// done one by one, for any number of moves. Eight loads are in flight at a time; where a slot of these eight is read
// after it was written, the value is passed on in registers.
#pragma once
#include "ptx.cuh"

namespace ssd::gpu {

struct KvCopyArgs {
  uint4 *k, *v;     // [layers, slots, units]
  int64_t layer;    // units of a layer
  int64_t units;    // units of 16 bytes in a slot
  const int64_t *sources, *targets;  // [moves], negative: none
  int64_t moves;
};

constexpr int kCopyThreads = 128;

// Grid: (ceil(units / 128), layers, K and V).
static __global__ void __launch_bounds__(kCopyThreads) kv_copy_kernel(const KvCopyArgs a) {
  const int64_t unit = blockIdx.x * int64_t(kCopyThreads) + threadIdx.x;
  if (unit >= a.units) return;
  uint4* cache = (blockIdx.z ? a.v : a.k) + blockIdx.y * a.layer + unit;
  constexpr int n = 8;
  for (int64_t first = 0; first < a.moves; first += n) {
    int64_t source[n], target[n];
    uint4 x[n];
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const bool there = first + i < a.moves && a.sources[first + i] >= 0 && a.targets[first + i] >= 0;
      source[i] = there ? a.sources[first + i] : -1, target[i] = there ? a.targets[first + i] : -1;
    }
#pragma unroll
    for (int i = 0; i < n; ++i)
      if (source[i] >= 0) x[i] = cache[source[i] * a.units];
#pragma unroll
    for (int i = 1; i < n; ++i)
#pragma unroll
      for (int j = 0; j < i; ++j)
        if (source[i] >= 0 && source[i] == target[j]) x[i] = x[j];
#pragma unroll
    for (int i = 0; i < n; ++i)
      if (target[i] >= 0) cache[target[i] * a.units] = x[i];
  }
}

}  // namespace ssd::gpu
