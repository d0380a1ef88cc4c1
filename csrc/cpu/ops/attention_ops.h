// Checks the paged cache and ragged batches, for every operator that takes them.
#pragma once
#include <ATen/core/Tensor.h>

#include "check.h"
#include "cpu/kernels.h"

namespace ssd {

inline Type storage_type(const at::Tensor& t, const char* name) {
  const auto s = t.scalar_type();
  SSD_CHECK_TYPE(s == at::kFloat || s == at::kBFloat16 || s == at::kHalf, name, ": got dtype ", s,
                 ", wanted float32, bfloat16 or float16");
  return s == at::kFloat ? Type::f32 : s == at::kBFloat16 ? Type::bf16 : Type::f16;
}

inline void check_caches(const at::Tensor& k, const at::Tensor& v) {
  SSD_CHECK(k.dim() == 4, "k_cache: got shape ", k.sizes(), ", wanted [pages, page_size, Hkv, D]");
  SSD_CHECK(v.sizes() == k.sizes(), "v_cache: got shape ", v.sizes(), ", wanted that of k_cache, ", k.sizes());
  SSD_CHECK_TYPE(v.scalar_type() == k.scalar_type(), "v_cache: got dtype ", v.scalar_type(),
                 ", wanted that of k_cache, ", k.scalar_type());
  SSD_CHECK(k.stride(3) == 1, "k_cache: got strides ", k.strides(), ", wanted 1 in the last dimension");
  SSD_CHECK(v.stride(3) == 1, "v_cache: got strides ", v.strides(), ", wanted 1 in the last dimension");
  storage_type(k, "k_cache");
}

RopeArgs rope_args(const at::Tensor& qkv, const at::Tensor& cos, const at::Tensor& sin, const at::Tensor& positions,
                   const at::Tensor& slots, const at::Tensor& k, const at::Tensor& v, const at::Tensor& q,
                   const std::optional<at::Tensor>& q_norm, const std::optional<at::Tensor>& k_norm, double eps);

AttentionArgs attention_args(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const at::Tensor& page_table, const at::Tensor& prefix_lens, const at::Tensor& row_offsets,
                             const std::optional<at::Tensor>& mask, double scale, double softcap);

}  // namespace ssd
