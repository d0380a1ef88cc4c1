// Moves cached tokens between slots of a paged cache, as if at once, in every layer.
//
// A thread owns 16 bytes of every slot of one layer: it copies those of all sources to shared memory, with all copies
// in flight together, and then writes the targets. No other thread writes what it reads, so chains, swaps and cycles of
// moves need no barrier.
#pragma once
#include "ptx.cuh"

namespace ssd::gpu {

struct KvCopyArgs {
  uint4 *k, *v;  // [layers, slots, units]
  int64_t layer;  // units of a layer
  int64_t units;  // units of 16 bytes in a slot
  const int64_t *sources, *targets;  // [moves]; a negative one makes no move
  int64_t moves;
};

constexpr int64_t kMaxMoves = 768;  // what fits into the 99 KiB of shared memory that every device has

constexpr int copy_threads(int64_t moves) { return moves <= 96 ? 32 : 8; }
constexpr int copy_shared_bytes(int64_t moves) { return int(moves) * copy_threads(moves) * 16; }

// Grid: (ceil(units / threads), layers, K and V).
static __global__ void __launch_bounds__(32) kv_copy_kernel(const KvCopyArgs a) {
  SharedArena arena;
  uint4* stage = arena.take<uint4>(int(a.moves * blockDim.x));  // [moves, threads]
  const int64_t unit = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (unit >= a.units) return;
  uint4* cache = (blockIdx.z ? a.v : a.k) + blockIdx.y * a.layer + unit;
  auto moves = [&](int64_t i) { return a.sources[i] >= 0 && a.targets[i] >= 0; };
  for (int64_t i = 0; i < a.moves; ++i)
    if (moves(i)) cp_async16(stage + i * blockDim.x + threadIdx.x, cache + a.sources[i] * a.units, 16);
  cp_async_commit();
  cp_async_wait<0>();
  for (int64_t i = 0; i < a.moves; ++i)
    if (moves(i)) cache[a.targets[i] * a.units] = stage[i * blockDim.x + threadIdx.x];
}

}  // namespace ssd::gpu
