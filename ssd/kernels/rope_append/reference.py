import torch

from ..norm.reference import rms_norm


def rope_append(qkv, cos, sin, positions, slots, k_cache, v_cache, q_norm=None, k_norm=None, eps=0.0):
    """Rotate q and k, store k and v at `slots` (in place; -1: not stored) and return q [R, Hq, D]."""
    num_kv_heads, head_dim = k_cache.shape[-2:]
    q, k, v = (
        qkv.float()
        .unflatten(-1, (-1, head_dim))
        .split([qkv.shape[-1] // head_dim - 2 * num_kv_heads, num_kv_heads, num_kv_heads], -2)
    )
    q, k = (x if w is None else rms_norm(x, w, eps) for x, w in ((q, q_norm), (k, k_norm)))
    c, s = cos[positions.long(), None], sin[positions.long(), None]  # [R, 1, D / 2]

    def rotate(x):
        x1, x2 = x.chunk(2, -1)
        return torch.cat([x1 * c - x2 * s, x2 * c + x1 * s], -1)

    stored, page_size = slots >= 0, k_cache.shape[1]
    where = slots[stored] // page_size, slots[stored] % page_size
    k_cache[where] = rotate(k)[stored].to(k_cache.dtype)
    v_cache[where] = v[stored].to(v_cache.dtype)
    return rotate(q)
