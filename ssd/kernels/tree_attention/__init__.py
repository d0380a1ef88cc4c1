"""Attention over a paged KV cache for plain decoding, prefill, tree verification and the draft's forest."""

import torch

from .. import library  # noqa: F401


def tree_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    prefix_lens: torch.Tensor,
    row_offsets: torch.Tensor,
    mask: torch.Tensor | None = None,
    *,
    scale: float,
    softcap: float = 0.0,
    return_lse: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Softmax attention of ragged rows over the keys that each row sees, reduced by ascending position.

    q: [R, Hq, D], float32 or the cache's dtype, D a multiple of 16 up to 256, Hq a multiple of Hkv. k_cache, v_cache:
    [pages, page_size, Hkv, D] float32, bfloat16 or float16, page_size >= 16; any strides, the last one 1.
    page_table: int32 [B, P]; logical key j of request b is page_table[b, j // page_size], slot j % page_size.
    prefix_lens: int32 [B]; every row sees keys 0..prefix_len-1. row_offsets: int32 [B + 1]; the rows of request b.
    mask: int64 [R, W], W from 1 to 8; bit s of a row's words: it sees tree slot s, the key prefix_len + s. Slots are
    in topological order, so the j-th set bit stands at position prefix_len + j. None: row t sees slots 0..t.
    Scores are scale * (q . k), or softcap * tanh(that / softcap) where softcap > 0.

    Returns out [R, Hq, D] of q's dtype and lse float32 [R, Hq], the log-sum-exp of the scores (empty [0, Hq] unless
    return_lse). A row that sees no key gives 0 and -inf. A row's bits depend on its own keys alone: not on the other
    rows, on where the prefix ends, or on the number of threads. Raises ValueError or TypeError that names the argument.
    """
    return torch.ops.ssd.tree_attention(
        q, k_cache, v_cache, page_table, prefix_lens, row_offsets, mask, scale, softcap, return_lse
    )


@torch.library.register_fake("ssd::tree_attention")
def _(q, k_cache, v_cache, page_table, prefix_lens, row_offsets, mask, scale, softcap=0.0, return_lse=False):
    return q.new_empty(q.shape), q.new_empty(q.shape[0] if return_lse else 0, q.shape[1], dtype=torch.float32)
