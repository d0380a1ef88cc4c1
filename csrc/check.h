// Argument checks of the operators. A message names the argument, what came and what is wanted.
#pragma once
#include <ATen/core/Tensor.h>

#define SSD_CHECK(cond, ...) TORCH_CHECK_VALUE(cond, __VA_ARGS__)
#define SSD_CHECK_TYPE(cond, ...) TORCH_CHECK_TYPE(cond, __VA_ARGS__)

namespace ssd {

inline void check_dense(const at::Tensor& t, const char* name, at::ScalarType dtype, int64_t dim) {
  SSD_CHECK_TYPE(t.scalar_type() == dtype, name, ": got dtype ", t.scalar_type(), ", wanted ", dtype);
  SSD_CHECK(t.dim() == dim, name, ": got ", t.dim(), " dimensions, wanted ", dim);
  SSD_CHECK(t.is_contiguous(), name, ": got strides ", t.strides(), ", wanted a contiguous tensor");
}

}  // namespace ssd
