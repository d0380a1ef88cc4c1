// What kernels take besides plain CUDA; a host build (no __CUDACC__) takes the same names from the test harness.
#pragma once

#ifndef __CUDACC__
#include "device_host.h"
#else

#define SSD_DEV __device__ __forceinline__

namespace ssd::gpu {

// Dynamic shared memory, handed out in order. A launch grants the sum of what its kernel takes.
struct SharedArena {
  char* p;
  SSD_DEV SharedArena() {
    extern __shared__ __align__(16) char ssd_dynamic_shared[];
    p = ssd_dynamic_shared;
  }
  template <class T>
  SSD_DEV T* take(int n) {
    T* r = reinterpret_cast<T*>(p);
    p += (n * int(sizeof(T)) + 15) / 16 * 16;
    return r;
  }
};

}  // namespace ssd::gpu
#endif
