// Checks the arguments of linear layers and embeddings, for every operator that takes them.
#pragma once
#include <ATen/core/Tensor.h>

#include "check.h"
#include "cpu/kernels.h"

namespace ssd {

// Fills in all but x, y, residual and scratch. x and name are what messages call the input and the weight.
LinearArgs linear_args(const char* x, const char* name, int64_t rows, int64_t k, const at::Tensor& packed, int64_t n,
                       const std::optional<at::Tensor>& bias, bool swiglu);

struct RowScratch {  // quantised rows of at most k inputs, lent to one LinearArgs after another
  at::Tensor quants, groups;
  RowScratch(int64_t rows, int64_t k);
  void lend(LinearArgs& a) const;
};

void check_embedding(const at::Tensor& ids, const at::Tensor& table);

struct EmbedArgs {  // out = the rows `ids` of the table
  const int64_t* ids;  // [rows]
  const void* table;  // [V, h], fp32 or bf16
  float* out;  // [rows, h]
  int64_t rows, h;
  bool fp32;
};
EmbedArgs embed_args(const at::Tensor& ids, const at::Tensor& table, const at::Tensor& out);
void embed(const EmbedArgs& a, Team& team);

}  // namespace ssd
