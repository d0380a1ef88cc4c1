// The host's side of csrc/cuda/ptx.cuh: CUDA's names, and the same helpers written after their definition.
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>

#include "grid.h"

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static_assert(false, "static shared memory would escape the sanitizer: take it from the arena");
#define SSD_DEV inline

struct alignas(8) int2 { int x, y; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) uint4 { unsigned x, y, z, w; };

using std::max;
using std::min;

inline float __fmul_rn(float a, float b) { return a * b; }  // the harness is built without contraction
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __frcp_rn(float a) { return 1 / a; }
inline int __ffs(int x) { return x ? std::countr_zero(unsigned(x)) + 1 : 0; }
inline int __popcll(unsigned long long x) { return std::popcount(x); }

inline void __syncthreads() { cuda_host::Block::now->barrier(false); }
inline int __syncthreads_or(int v) { return cuda_host::Block::now->barrier(v); }

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
template <class V>
V __shfl_up_sync(unsigned mask, V v, int d) {
  int lane = cuda_host::Block::now->lane();
  return __shfl_sync(mask, v, lane >= d ? lane - d : lane);
}

namespace ssd::gpu {

struct bf16 {};
struct fp16 {};

struct SharedArena {
  template <class T>
  T* take(int n) {
    return static_cast<T*>(cuda_host::Block::now->take(n * sizeof(T)));
  }
};

// The copy happens at its wait; until then the destination is NaN.
inline void cp_async16(void* dst, const void* src, int size) {
  if (reinterpret_cast<uintptr_t>(dst) % 16 || reinterpret_cast<uintptr_t>(src) % 16)
    cuda_host::fail("cp.async needs 16-byte alignment");
  if (size != 0 && size != 16) cuda_host::fail("cp.async of neither 0 nor 16 bytes");
  std::memset(dst, 0xff, 16);
  cuda_host::Block::now->self->open.push_back({static_cast<char*>(dst), static_cast<const char*>(src), size});
}
inline void cp_async_commit() {
  auto* t = cuda_host::Block::now->self;
  t->groups.push_back(std::move(t->open));
  t->open.clear();
}
template <int N>
void cp_async_wait() {
  auto& groups = cuda_host::Block::now->self->groups;
  while (groups.size() > N) {
    for (const auto& c : groups.front()) {
      std::memset(c.dst, 0, 16);
      std::memcpy(c.dst, c.src, c.size);
    }
    groups.erase(groups.begin());
  }
}

inline void ldmatrix_x4(uint32_t (&r)[4], const uint16_t* row) {
  if (reinterpret_cast<uintptr_t>(row) % 16) cuda_host::fail("ldmatrix needs rows aligned to 16 bytes");
  auto* b = cuda_host::Block::now;
  const uint16_t* const* rows = b->meet(cuda_host::Op::ldmatrix, row);
  for (int i = 0; i < 4; ++i) {
    const uint16_t* p = rows[8 * i + b->lane() / 4] + b->lane() % 4 * 2;
    r[i] = p[0] | uint32_t(p[1]) << 16;
  }
}
inline void ldmatrix_x4_trans(uint32_t (&r)[4], const uint16_t* row) {
  if (reinterpret_cast<uintptr_t>(row) % 16) cuda_host::fail("ldmatrix needs rows aligned to 16 bytes");
  auto* b = cuda_host::Block::now;
  const uint16_t* const* rows = b->meet(cuda_host::Op::ldmatrix, row);
  const int g = b->lane() / 4, t = b->lane() % 4;
  for (int i = 0; i < 4; ++i) r[i] = rows[8 * i + 2 * t][g] | uint32_t(rows[8 * i + 2 * t + 1][g]) << 16;
}

inline float to_float(bf16, uint16_t x) { return std::bit_cast<float>(uint32_t(x) << 16); }
inline float to_float(fp16, uint16_t x) { return std::bit_cast<_Float16>(x); }
inline uint16_t from_float(bf16, float x) {
  uint32_t u = std::bit_cast<uint32_t>(x);
  if (x != x) return 0x7fff;
  return uint16_t((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
inline uint16_t from_float(fp16, float x) { return x != x ? 0x7fff : std::bit_cast<uint16_t>(_Float16(x)); }

template <class T>
uint32_t pack(T t, float lo, float hi) {
  return from_float(t, lo) | uint32_t(from_float(t, hi)) << 16;
}
template <class T>
float2 unpack(T t, uint32_t pair) {
  return {to_float(t, uint16_t(pair)), to_float(t, uint16_t(pair >> 16))};
}
inline bool is_finite(bf16, uint32_t x) { return (x & 0x7f80u) != 0x7f80u; }
inline bool is_finite(fp16, uint32_t x) { return (x & 0x7c00u) != 0x7c00u; }

// How the sixteen products and the accumulator of one element are added. The instruction's order is not documented,
// so a kernel's promises must hold under each of these.
inline int mma_order = 0;  // 0: ascending, 1: pairs of pairs, 2: descending, 3: exact, then truncated

struct Operands { uint32_t a[4], b[2]; };
template <class T>
void mma(T t, float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  auto* block = cuda_host::Block::now;
  const Operands* all = block->meet(cuda_host::Op::mma, Operands{{a[0], a[1], a[2], a[3]}, {b0, b1}});
  const int g = block->lane() / 4, q = block->lane() % 4;
  for (int e = 0; e < 4; ++e) {
    const int high = e / 2, col = 2 * q + e % 2;
    float products[16];  // exact: 16-bit factors
    for (int k = 0; k < 16; ++k) {
      const Operands& left = all[4 * g + k % 8 / 2];
      const Operands& right = all[4 * col + k % 8 / 2];
      const int shift = k % 2 * 16;
      products[k] =
          to_float(t, uint16_t(left.a[high + k / 8 * 2] >> shift)) * to_float(t, uint16_t(right.b[k / 8] >> shift));
    }
    if (mma_order == 0) {
      for (int k = 0; k < 16; ++k) c[e] += products[k];
    } else if (mma_order == 1) {
      for (int n = 8; n; n /= 2)
        for (int k = 0; k < n; ++k) products[k] += products[k + n];
      c[e] += products[0];
    } else if (mma_order == 2) {
      for (int k = 15; k >= 0; --k) c[e] += products[k];
    } else {
      long double sum = c[e];
      for (float p : products) sum += p;
      float r = float(sum);
      c[e] = std::isfinite(r) && std::fabs((long double)r) > std::fabs(sum) ? std::nextafter(r, 0.f) : r;
    }
  }
}

inline float exp2_approx(float x) { return std::exp2(x); }

}  // namespace ssd::gpu
