import torch
import triton
import triton.language as tl

from ..check import check_dtypes

HELD = 32 << 20  # bytes of moved slots that are held at once; more layers follow after the first ones


@triton.jit(do_not_specialize=["count"])
def kv_copy_kernel(k_cache, v_cache, held, sources, targets, count, layer, n, BLOCK: tl.constexpr, SAVE: tl.constexpr):
    """Saves a source of a layer, or writes what was saved to its target."""
    move, i, o_n = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    source, target = tl.load(sources + move), tl.load(targets + move)
    m = o_n < tl.where((source >= 0) & (target >= 0), n, 0)
    p_held = held + (2 * i * count + move) * n + o_n
    if SAVE:
        o_from = i * layer + source * n + o_n
        tl.store(p_held, tl.load(k_cache + o_from, mask=m), mask=m)
        tl.store(p_held + count.to(tl.int64) * n, tl.load(v_cache + o_from, mask=m), mask=m)
    else:
        o_to = i * layer + target * n + o_n
        tl.store(k_cache + o_to, tl.load(p_held, mask=m), mask=m)
        tl.store(v_cache + o_to, tl.load(p_held + count.to(tl.int64) * n, mask=m), mask=m)


def kv_copy(k_cache, v_cache, sources, targets):
    """The Triton form of ssd.kernels.kv_copy: a launch reads all sources of some layers, the next writes them."""
    check_dtypes(torch.int64, sources=sources, targets=targets)
    layers, n, count = k_cache.shape[0], k_cache.shape[3] * k_cache.shape[4], sources.shape[0]
    if not count or not layers:
        return
    together = min(layers, max(1, HELD // (2 * count * n * k_cache.element_size())))
    held = torch.empty((together, 2, count, n), dtype=k_cache.dtype, device=k_cache.device)
    block = min(1024, triton.next_power_of_2(n))
    for first in range(0, layers, together):
        k, v = k_cache[first : first + together], v_cache[first : first + together]
        for save in (True, False):
            kv_copy_kernel[count, len(k), triton.cdiv(n, block)](
                k, v, held, sources, targets, count, k.stride(0), n, BLOCK=block, SAVE=save, num_warps=4,
                enable_fp_fusion=False,
            )  # fmt: skip
