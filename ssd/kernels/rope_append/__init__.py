"""Rotary position embedding (Su et al., arXiv 2104.09864), optionally after an RMSNorm of each head of q and k
(Henry et al., arXiv 2010.04245), and append to the paged KV cache."""

import torch

from .. import library  # noqa: F401


def rope_append(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    eps: float = 0.0,
) -> torch.Tensor:
    """Rotate q and k, store k and v, return q float32 [R, Hq, D].

    qkv: float32 [R, (Hq + 2 Hkv) D], the heads of q, then k, then v. cos, sin: float32 [max positions, D / 2];
    halves are rotated as pairs (i, i + D / 2). positions: int32 [R]. slots: int64 [R], page * page_size + offset of
    the row's K and V, or -1 where they are not stored. k_cache, v_cache: [pages, page_size, Hkv, D] of float32,
    bfloat16 or float16, last stride 1. q_norm, k_norm: [D], float32 on the CPU: weights of
    `rms_norm`, with eps, of each head. Raises ValueError or TypeError that names the argument.
    """
    return torch.ops.ssd.rope_append(qkv, cos, sin, positions, slots, k_cache, v_cache, q_norm, k_norm, eps)


@torch.library.register_fake("ssd::rope_append")
def _(qkv, cos, sin, positions, slots, k_cache, v_cache, q_norm=None, k_norm=None, eps=0.0):
    num_kv_heads, d = k_cache.shape[2:]
    dtype = torch.float32 if qkv.device.type == "cpu" else k_cache.dtype
    return qkv.new_empty(qkv.shape[0], qkv.shape[1] // d - 2 * num_kv_heads, d, dtype=dtype)
