#include "launch.cuh"

namespace ssd::gpu {

cudaError_t launch_verify_swap(const VerifySwapArgs& a, int64_t requests, cudaStream_t stream) {
  if (!requests) return cudaSuccess;
  verify_swap_kernel<<<unsigned(requests), 32, 64 * sizeof(int), stream>>>(a);
  return cudaGetLastError();
}

}  // namespace ssd::gpu
