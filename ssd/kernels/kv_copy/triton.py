import torch
import triton
import triton.language as tl

from ..check import check_dtypes


@triton.jit
def kv_copy_kernel(k_cache, v_cache, sources, targets, count, layer, n, BLOCK: tl.constexpr):
    """A program owns its elements of all slots of a layer and moves them in order, so no move overtakes another."""
    o_n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    m_n = o_n < n
    p_k = k_cache + tl.program_id(0).to(tl.int64) * layer + o_n
    p_v = v_cache + tl.program_id(0).to(tl.int64) * layer + o_n
    for i in range(0, count):
        source, target = tl.load(sources + i), tl.load(targets + i)
        m = m_n & (o_n * 0 + source >= 0) & (o_n * 0 + target >= 0)
        tl.store(p_k + target * n, tl.load(p_k + source * n, mask=m), mask=m)
        tl.store(p_v + target * n, tl.load(p_v + source * n, mask=m), mask=m)
        tl.debug_barrier()  # the next move may read what another thread has just written


def kv_copy(k_cache, v_cache, sources, targets):
    check_dtypes(torch.int64, sources=sources, targets=targets)
    layers, n, count = k_cache.shape[0], k_cache.shape[3] * k_cache.shape[4], sources.shape[0]
    if count and layers:
        block = min(512, triton.next_power_of_2(n))
        kv_copy_kernel[layers, triton.cdiv(n, block)](
            k_cache, v_cache, sources, targets, count, k_cache.stride(0), n, BLOCK=block, num_warps=2
        )
