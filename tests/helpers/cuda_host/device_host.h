// The host's side of csrc/cuda/device.cuh: CUDA's names, and the same helpers written after their definition.
#pragma once
#include <algorithm>
#include <bit>

#include "grid.h"

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static_assert(false, "static shared memory would escape the sanitizer: take it from the arena");
#define SSD_DEV inline

using std::max;
using std::min;

inline int __ffs(int x) { return x ? std::countr_zero(unsigned(x)) + 1 : 0; }

namespace cuda_host {
inline void full(unsigned mask) {
  if (mask != ~0u) fail("only full warps meet here");
}
}  // namespace cuda_host

inline void __syncwarp() { cuda_host::Block::now->meet(cuda_host::Op::sync_warp, 0); }
inline unsigned __ballot_sync(unsigned mask, bool v) {
  cuda_host::full(mask);
  const int* all = cuda_host::Block::now->meet(cuda_host::Op::ballot, int(v));
  unsigned r = 0;
  for (int i = 0; i < 32; ++i) r |= unsigned(all[i]) << i;
  return r;
}
template <class V>
V __shfl_sync(unsigned mask, V v, int lane) {
  cuda_host::full(mask);
  return cuda_host::Block::now->meet(cuda_host::Op::shuffle, v)[lane & 31];
}
template <class V>
V __shfl_xor_sync(unsigned mask, V v, int bits) {
  return __shfl_sync(mask, v, cuda_host::Block::now->lane() ^ bits);
}

namespace ssd::gpu {

struct SharedArena {
  template <class T>
  T* take(int n) {
    return static_cast<T*>(cuda_host::Block::now->take(n * sizeof(T)));
  }
};

}  // namespace ssd::gpu
