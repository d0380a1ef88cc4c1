import torch
import triton
import triton.language as tl

from ..check import check_dtypes


@triton.jit
def rope_append_fwd_kernel(
    qkv, cos, sin, positions, slots, k_cache, v_cache, q, qkv_row, k_page, k_slot, k_head, v_page, v_slot, v_head,
    PAGE: tl.constexpr, HQ: tl.constexpr, HKV: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, head, o_d = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64), tl.arange(0, BLOCK)
    m_d = o_d < D // 2
    p_x = qkv + row * qkv_row + head * D + o_d
    b_1 = tl.load(p_x, mask=m_d, other=0.0).to(tl.float32)
    b_2 = tl.load(p_x + D // 2, mask=m_d, other=0.0).to(tl.float32)
    if head < HQ + HKV:
        o_c = tl.load(positions + row).to(tl.int64) * (D // 2) + o_d
        c, s = tl.load(cos + o_c, mask=m_d, other=0.0), tl.load(sin + o_c, mask=m_d, other=0.0)
        b_1, b_2 = b_1 * c - b_2 * s, b_2 * c + b_1 * s
    slot = tl.load(slots + row)
    page, at = slot // PAGE, slot % PAGE
    if head < HQ:
        p_q = q + (row * HQ + head) * D + o_d
        tl.store(p_q, b_1.to(q.dtype.element_ty), mask=m_d)
        tl.store(p_q + D // 2, b_2.to(q.dtype.element_ty), mask=m_d)
    elif slot >= 0:
        if head < HQ + HKV:
            p_k = k_cache + page * k_page + at * k_slot + (head - HQ) * k_head + o_d
            tl.store(p_k, b_1.to(k_cache.dtype.element_ty), mask=m_d)
            tl.store(p_k + D // 2, b_2.to(k_cache.dtype.element_ty), mask=m_d)
        else:
            p_v = v_cache + page * v_page + at * v_slot + (head - HQ - HKV) * v_head + o_d
            tl.store(p_v, b_1.to(v_cache.dtype.element_ty), mask=m_d)
            tl.store(p_v + D // 2, b_2.to(v_cache.dtype.element_ty), mask=m_d)


def rope_append(qkv, cos, sin, positions, slots, k_cache, v_cache):
    """q [R, Hq, D] in the caches' dtype, in which attention multiplies."""
    check_dtypes(torch.int32, positions=positions)
    check_dtypes(torch.int64, slots=slots)
    check_dtypes(torch.float32, cos=cos, sin=sin)
    rows, (page_size, num_kv_heads, dim) = qkv.shape[0], k_cache.shape[1:]
    num_heads = qkv.shape[1] // dim - 2 * num_kv_heads
    q = torch.empty((rows, num_heads, dim), dtype=k_cache.dtype, device=qkv.device)
    if rows:
        rope_append_fwd_kernel[rows, num_heads + 2 * num_kv_heads](
            qkv, cos, sin, positions, slots, k_cache, v_cache, q, qkv.stride(0),
            *k_cache.stride()[:3], *v_cache.stride()[:3], PAGE=page_size, HQ=num_heads, HKV=num_kv_heads, D=dim,
            BLOCK=triton.next_power_of_2(dim // 2), num_warps=1, enable_fp_fusion=False,
        )  # fmt: skip
    return q
