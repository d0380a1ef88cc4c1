// Launchers of the kernels that move cached tokens and end a round.
#include "launch.cuh"

namespace ssd::gpu {

cudaError_t launch_kv_copy(const KvCopyArgs& a, int64_t layers, cudaStream_t stream) {
  if (!a.moves || !a.units || !layers) return cudaSuccess;
  const dim3 grid(unsigned((a.units + kCopyThreads - 1) / kCopyThreads), unsigned(layers), 2);
  kv_copy_kernel<<<grid, kCopyThreads, 0, stream>>>(a);
  return cudaGetLastError();
}

cudaError_t launch_verify_swap(const VerifySwapArgs& a, int64_t requests, cudaStream_t stream) {
  if (!requests) return cudaSuccess;
  verify_swap_kernel<<<unsigned(requests), 32, 64 * sizeof(int), stream>>>(a);
  return cudaGetLastError();
}

}  // namespace ssd::gpu
