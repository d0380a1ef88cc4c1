// Launchers of the CUDA kernels, without torch. They trust their arguments and return the error of the launch.
#pragma once
#include <cuda_runtime_api.h>

#include "attention/dispatch.cuh"
#include "kv_copy.cuh"
#include "verify_swap.cuh"

namespace ssd::gpu {

cudaError_t launch_attention_bf16(const AttentionArgs& a, AttentionPlan plan, int64_t head_dim, cudaStream_t stream);
cudaError_t launch_attention_fp16(const AttentionArgs& a, AttentionPlan plan, int64_t head_dim, cudaStream_t stream);
cudaError_t launch_kv_copy(const KvCopyArgs& a, int64_t layers, cudaStream_t stream);
cudaError_t launch_verify_swap(const VerifySwapArgs& a, int64_t requests, cudaStream_t stream);

// Used by the two files that hold the instances of one dtype each.
template <class T>
cudaError_t launch_attention_of(const AttentionArgs& a, AttentionPlan plan, int64_t head_dim, cudaStream_t stream) {
  cudaError_t status = cudaSuccess;
  dispatch_attention<T>(a, plan, head_dim, [&](auto kernel, int64_t x, int64_t y, int threads, int shared) {
    if (status == cudaSuccess && shared > 48 << 10)
      status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    if (status != cudaSuccess) return;
    kernel<<<dim3(unsigned(x), unsigned(y)), threads, shared, stream>>>(a);
    status = cudaGetLastError();
  });
  return status;
}

}  // namespace ssd::gpu
