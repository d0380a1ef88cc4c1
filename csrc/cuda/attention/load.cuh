// Loads tiles from global to shared memory, and treats elements of V that are not finite.
#pragma once
#include "tile.cuh"

namespace ssd::gpu {

// Copies BK rows of K or V, 16 bytes at a time; rows without a page become zero and are not read.
template <class S>
SSD_DEV void load_tile(uint16_t* dst, const CacheView& c, int head, const int2* keys) {
  constexpr int chunks = S::D / 8;
#pragma unroll
  for (int i = threadIdx.x; i < S::BK * chunks; i += kThreads) {
    const int key = i / chunks, d = i % chunks * 8;
    const int2 at = keys[key];
    const bool there = at.x >= 0;
    const uint16_t* src = c.data + (there ? at.x * c.page + at.y * c.slot + head * c.head + d : 0);
    cp_async16(dst + key * S::LD + d, src, there ? 16 : 0);
  }
}

// Loads M packed rows of q; rows past the end of the tile become zero.
template <class S>
SSD_DEV void load_q(uint16_t* dst, const AttentionArgs& a, const Tile& tile, int group, int head) {
  using T = typename S::T;
  constexpr int chunks = S::D / 8;
  for (int i = threadIdx.x; i < S::M * chunks; i += kThreads) {
    const int m = i / chunks, d = i % chunks * 8, t = (tile.m0 + m) / group, g = (tile.m0 + m) % group;
    uint4 x = {0, 0, 0, 0};
    if (t < tile.rows) {
      const int64_t at = (int64_t(tile.row) + t) * a.q_row + (int64_t(head) * group + g) * a.q_head + d;
      if (a.q_float) {
        const float4* p = reinterpret_cast<const float4*>(static_cast<const float*>(a.q) + at);
        const float4 lo = p[0], hi = p[1];
        x = {pack(T(), lo.x, lo.y), pack(T(), lo.z, lo.w), pack(T(), hi.x, hi.y), pack(T(), hi.z, hi.w)};
      } else {
        x = *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(a.q) + at);
      }
    }
    *reinterpret_cast<uint4*>(dst + m * S::LD + d) = x;
  }
}

// In the last tiles of a chain the early rows do not see all keys, and their weight 0 times a V that is not finite is
// NaN. So such elements leave the tile before the product and are added after it, only to the rows that see them. This
// zeroes them and returns whether there were any.
template <class S>
SSD_DEV bool remove_non_finite(uint16_t* v) {
  using T = typename S::T;
  bool found = false;
  for (int i = threadIdx.x; i < S::BK * (S::D / 2); i += kThreads) {
    uint32_t* pair = reinterpret_cast<uint32_t*>(v + i / (S::D / 2) * S::LD) + i % (S::D / 2);
    const uint32_t x = *pair, keep = (is_finite(T(), x) ? 0xffffu : 0) | (is_finite(T(), x >> 16) ? 0xffff0000u : 0);
    if (keep == ~0u) continue;
    *pair = x & keep;
    found = true;
  }
  return found;
}

// Adds what remove_non_finite removed to one output element, whose row sees the first n keys of the tile.
template <class S>
SSD_DEV float add_non_finite(float acc, const CacheView& v, int head, const int2* keys, const uint16_t* weights, int d,
                             int n) {
  using T = typename S::T;
  for (int k = 0; k < min(n, S::BK); ++k) {
    if (keys[k].x < 0) continue;
    const uint16_t x = v.data[keys[k].x * v.page + keys[k].y * v.slot + head * v.head + d];
    if (!is_finite(T(), x)) acc = __fmaf_rn(unpack(T(), weights[k]).x, unpack(T(), x).x, acc);
  }
  return acc;
}

}  // namespace ssd::gpu
