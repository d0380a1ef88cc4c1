#include "../launch.cuh"

cudaError_t ssd::gpu::launch_attention_fp16(const AttentionArgs& a, AttentionPlan plan, int64_t head_dim,
                                            cudaStream_t stream) {
  return launch_attention_of<fp16>(a, plan, head_dim, stream);
}
