import torch
import triton
import triton.language as tl

from ..check import check_dtypes


@triton.jit
def kv_copy_kernel(k_cache, v_cache, sources, targets, count, layer, n, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """A program owns its elements of all slots of a layer; all are read before one is written."""
    o_i = tl.arange(0, COUNT)
    o_n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    source = tl.load(sources + o_i, mask=o_i < count, other=-1)  # [COUNT]
    target = tl.load(targets + o_i, mask=o_i < count, other=-1)
    m = ((source >= 0) & (target >= 0))[:, None] & (o_n < n)[None, :]
    p_source = tl.program_id(0).to(tl.int64) * layer + source[:, None] * n + o_n[None, :]  # [COUNT, BLOCK]
    p_target = tl.program_id(0).to(tl.int64) * layer + target[:, None] * n + o_n[None, :]
    b_k = tl.load(k_cache + p_source, mask=m)
    b_v = tl.load(v_cache + p_source, mask=m)
    tl.debug_barrier()  # a thread's target may be another's source
    tl.store(k_cache + p_target, b_k, mask=m)
    tl.store(v_cache + p_target, b_v, mask=m)


def kv_copy(k_cache, v_cache, sources, targets):
    check_dtypes(torch.int64, sources=sources, targets=targets)
    layers, n, count = k_cache.shape[0], k_cache.shape[3] * k_cache.shape[4], sources.shape[0]
    if count > 512:
        raise ValueError(f"sources: got {count} moves, wanted at most 512 in one call")
    if count and layers:
        rows = triton.next_power_of_2(count)
        block = min(triton.next_power_of_2(n), max(16, 4096 // rows))
        kv_copy_kernel[layers, triton.cdiv(n, block)](
            k_cache, v_cache, sources, targets, count, k_cache.stride(0), n, COUNT=rows, BLOCK=block, num_warps=4
        )
