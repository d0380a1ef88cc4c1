// Launchers of kv_copy and verify_swap, the kernels that move cached tokens and end a round.
#include "launch.cuh"

namespace ssd::gpu {

cudaError_t launch_kv_copy(const KvCopyArgs& a, int64_t layers, cudaStream_t stream) {
  if (!a.moves || !a.units || !layers) return cudaSuccess;
  const int threads = copy_threads(a.moves), shared = copy_shared_bytes(a.moves);
  const dim3 grid(unsigned((a.units + threads - 1) / threads), unsigned(layers), 2);
  if (shared > 48 << 10) {
    const auto attribute = cudaFuncAttributeMaxDynamicSharedMemorySize;
    if (auto status = cudaFuncSetAttribute(kv_copy_kernel, attribute, shared); status != cudaSuccess) return status;
  }
  kv_copy_kernel<<<grid, threads, shared, stream>>>(a);
  return cudaGetLastError();
}

cudaError_t launch_verify_swap(const VerifySwapArgs& a, int64_t requests, cudaStream_t stream) {
  if (!requests) return cudaSuccess;
  verify_swap_kernel<<<unsigned(requests), 32, 64 * sizeof(int), stream>>>(a);
  return cudaGetLastError();
}

}  // namespace ssd::gpu
