// Rotates q and k, after an RMSNorm of each head where the model has one, and appends k and v to the paged cache.
//
// Halves are rotated as pairs (i, i + D / 2): x1 cos - x2 sin, x2 cos + x1 sin, each by one product and one fma.
#pragma once
#include "kernels.h"
#include "norm.h"
#include "simd/simd.h"

namespace ssd {
namespace SSD_ISA {

template <class T> SSD_INLINE void rotate(const float* x, const float* cos, const float* sin, int d, T* out) {
  for (int i = 0; i < d / 2; i += 16) {
    const int n = std::min(16, d / 2 - i);
    const f32x16 x1 = load_n(x + i, n), x2 = load_n(x + d / 2 + i, n), c = load_n(cos + i, n), s = load_n(sin + i, n);
    store_n(out + i, fma(x1, c, zero() - x2 * s), n);
    store_n(out + d / 2 + i, fma(x2, c, x1 * s), n);
  }
}

template <class T> void rope_append_typed(const RopeArgs& a, int64_t r) {
  const int d = int(a.head_dim);
  const float* x = a.qkv + r * (a.heads + 2 * a.kv_heads) * d;
  const float *cos = a.cos + int64_t(a.positions[r]) * (d / 2), *sin = a.sin + int64_t(a.positions[r]) * (d / 2);
  float head[kMaxNormedHead];
  auto normed = [&](const float* heads, const float* weight, int h) -> const float* {
    if (!weight) return heads + h * d;
    norm_row({heads, nullptr, weight, head, nullptr, a.heads, d, 0, a.eps}, h);
    return head;
  };
  for (int h = 0; h < a.heads; ++h) rotate(normed(x, a.q_norm, h), cos, sin, d, a.q + (r * a.heads + h) * d);
  if (a.slots[r] < 0) return;
  const int64_t page = a.slots[r] / a.page_size, slot = a.slots[r] % a.page_size;
  for (int h = 0; h < a.kv_heads; ++h) {
    T* k = (T*)a.k + page * a.k_page + slot * a.k_slot + h * a.k_head;
    rotate(normed(x + a.heads * d, a.k_norm, h), cos, sin, d, k);
    T* v = (T*)a.v + page * a.v_page + slot * a.v_slot + h * a.v_head;
    for (int i = 0; i < d; i += 16) {
      const int n = std::min(16, d - i);
      store_n(v + i, load_n(x + (a.heads + a.kv_heads + h) * d + i, n), n);
    }
  }
}

inline void rope_append(const RopeArgs& a, Team& team) {
  team.each(a.rows, items_of(8 * (a.heads + 2 * a.kv_heads) * a.head_dim), [&](int64_t r) {
    if (a.kv_type == Type::f32) rope_append_typed<float>(a, r);
    else if (a.kv_type == Type::bf16) rope_append_typed<bf16>(a, r);
    else rope_append_typed<fp16>(a, r);
  });
}

}  // namespace SSD_ISA
}  // namespace ssd
