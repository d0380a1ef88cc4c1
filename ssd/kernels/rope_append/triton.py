import torch
import triton
import triton.language as tl

from ..check import check_dtypes


@triton.jit
def normed(b_1, b_2, p_w, m_d, eps, D: tl.constexpr):
    scale = 1 / tl.sqrt_rn(tl.sum(b_1 * b_1 + b_2 * b_2, 0) / D + eps)
    w_1 = tl.load(p_w, mask=m_d, other=0.0).to(tl.float32)
    w_2 = tl.load(p_w + D // 2, mask=m_d, other=0.0).to(tl.float32)
    return b_1 * scale * w_1, b_2 * scale * w_2


@triton.jit
def rope_append_fwd_kernel(
    qkv, cos, sin, positions, slots, k_cache, v_cache, q, q_norm, k_norm, eps,
    qkv_row, k_page, k_slot, k_head, v_page, v_slot, v_head,
    PAGE: tl.constexpr, HQ: tl.constexpr, HKV: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
    Q_NORM: tl.constexpr, K_NORM: tl.constexpr,
):  # fmt: skip
    row, head, o_d = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64), tl.arange(0, BLOCK)
    m_d = o_d < D // 2
    p_x = qkv + row * qkv_row + head * D + o_d
    b_1 = tl.load(p_x, mask=m_d, other=0.0).to(tl.float32)
    b_2 = tl.load(p_x + D // 2, mask=m_d, other=0.0).to(tl.float32)
    if Q_NORM:
        if head < HQ:
            b_1, b_2 = normed(b_1, b_2, q_norm + o_d, m_d, eps, D)
    if K_NORM:
        if (head >= HQ) & (head < HQ + HKV):
            b_1, b_2 = normed(b_1, b_2, k_norm + o_d, m_d, eps, D)
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


def rope_append(qkv, cos, sin, positions, slots, k_cache, v_cache, q_norm=None, k_norm=None, eps=0.0):
    """The rotated q [R, Hq, D], in the dtype of the caches."""
    check_dtypes(torch.int32, positions=positions)
    check_dtypes(torch.int64, slots=slots)
    check_dtypes(torch.float32, cos=cos, sin=sin)
    rows, (page_size, num_kv_heads, dim) = qkv.shape[0], k_cache.shape[1:]
    for name, weight in (("q_norm", q_norm), ("k_norm", k_norm)):
        if weight is not None and (weight.shape != (dim,) or not weight.is_contiguous()):
            raise ValueError(f"{name}: got shape {tuple(weight.shape)}, wanted contiguous ({dim},)")
    num_heads = qkv.shape[1] // dim - 2 * num_kv_heads
    q = torch.empty((rows, num_heads, dim), dtype=k_cache.dtype, device=qkv.device)
    if rows:
        rope_append_fwd_kernel[rows, num_heads + 2 * num_kv_heads](
            qkv, cos, sin, positions, slots, k_cache, v_cache, q, q_norm, k_norm, eps, qkv.stride(0),
            *k_cache.stride()[:3], *v_cache.stride()[:3], PAGE=page_size, HQ=num_heads, HKV=num_kv_heads, D=dim,
            BLOCK=triton.next_power_of_2(dim // 2), Q_NORM=q_norm is not None, K_NORM=k_norm is not None,
            num_warps=1, enable_fp_fusion=False,
        )  # fmt: skip
    return q
