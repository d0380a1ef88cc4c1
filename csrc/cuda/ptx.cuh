// The few instructions that CUDA C++ has no name for, one function each. Kernels use only these and plain CUDA; a host
// build (no __CUDACC__) takes the same names from the test harness.
#pragma once
#include <cstdint>

#ifndef __CUDACC__
#include "ptx_host.h"
#else

#define SSD_DEV __device__ __forceinline__

namespace ssd::gpu {

struct bf16 {};  // tags: elements travel as uint16_t, pairs as uint32_t (low half first)
struct fp16 {};

// Dynamic shared memory, handed out in order. A kernel's shape states the sum of what it takes.
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

SSD_DEV uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// Copies 16 bytes from global to shared memory without registers; bytes past `size` (0 or 16) become zero unread.
SSD_DEV void cp_async16(void* dst, const void* src, int size) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(dst)), "l"(src), "r"(size)
               : "memory");
}
SSD_DEV void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most N of this thread's newest groups are in flight.
template <int N>
SSD_DEV void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// Loads four 8x8 matrices of 16-bit elements. Lane l passes the address of row l % 8 of matrix l / 8 and receives from
// each matrix elements (l / 4, 2 (l % 4)) and the next one; transposed, (2 (l % 4), l / 4) and the one below.
SSD_DEV void ldmatrix_x4(uint32_t (&r)[4], const uint16_t* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
SSD_DEV void ldmatrix_x4_trans(uint32_t (&r)[4], const uint16_t* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

// c[16x8] += a[16x16] b[16x8], fp32 accumulation. Lane (g = l / 4, t = l % 4) holds c: (g, 2t), (g, 2t+1), (g+8, 2t),
// (g+8, 2t+1); a pairs: (g, 2t), (g+8, 2t), (g, 2t+8), (g+8, 2t+8); b pairs along k: (2t, g), (2t+8, g).
SSD_DEV void mma(bf16, float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
SSD_DEV void mma(fp16, float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Packs two floats into a pair, rounding to nearest even.
SSD_DEV uint32_t pack(bf16, float lo, float hi) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}
SSD_DEV uint32_t pack(fp16, float lo, float hi) {
  uint32_t r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}
SSD_DEV float2 unpack(bf16, uint32_t pair) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
}
SSD_DEV float2 unpack(fp16, uint32_t pair) {
  float2 r;
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}" : "=f"(r.x), "=f"(r.y) : "r"(pair));
  return r;
}

SSD_DEV bool is_finite(bf16, uint32_t x) { return (x & 0x7f80u) != 0x7f80u; }  // tests the low half
SSD_DEV bool is_finite(fp16, uint32_t x) { return (x & 0x7c00u) != 0x7c00u; }

// 2^x to 2 ulp; 2^0 = 1 and 2^-inf = 0 exactly.
SSD_DEV float exp2_approx(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

}  // namespace ssd::gpu
#endif
