// The launcher of the CUDA kernel, without torch. It trusts its arguments and returns the error of the launch.
#pragma once
#include <cuda_runtime_api.h>

#include "verify_swap.cuh"

namespace ssd::gpu {

cudaError_t launch_verify_swap(const VerifySwapArgs& a, int64_t requests, cudaStream_t stream);

}  // namespace ssd::gpu
