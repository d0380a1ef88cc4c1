"""flash-attn (Dao, arXiv 2307.08691) in place of tree attention for prompts, on request.

flash-attn is never the default: it chooses its own blocks of keys and rows, so the KV of a prompt is not, bit for bit,
that of the same tokens decoded one by one or in other chunks.
"""

from collections.abc import Callable

import torch

from . import tree_attention

VERIFICATION = 64  # a request with more rows is a prompt


def function(device: torch.device) -> Callable:
    """The function flash_attn_varlen_func. Raises ValueError where it cannot run."""
    if device.type != "cuda":
        raise ValueError(f"prompt_attention: flash needs a model on a GPU (device cuda); this one is on {device}")
    try:
        from flash_attn import flash_attn_varlen_func
    except ImportError:
        raise ValueError("prompt_attention: flash needs the package flash-attn (pip install flash-attn)") from None
    return flash_attn_varlen_func


class Prompts:
    """The attention of one pass: flash-attn for prompts, tree_attention for verifications and steps beside them."""

    def __init__(self, call: Callable, requests, page_table, prefix_lens, offsets: list[int], page_size: int):
        """Sort the rows of the pass; waits for the device. requests: the indices of the prompts."""
        device, prefix = page_table.device, prefix_lens.tolist()
        counts = [b - a for a, b in zip(offsets, offsets[1:], strict=False)]
        self.call, self.rest = call, None

        def ints(values):
            return torch.tensor(values, dtype=torch.int32, device=device)

        def rows_of(chosen):
            return torch.cat([torch.arange(offsets[b], offsets[b + 1], device=device) for b in chosen])

        def starts(sizes):
            return ints([0, *torch.tensor(sizes).cumsum(0).tolist()])

        keys = [prefix[b] + counts[b] for b in requests]
        pages, places = [], []
        for b, n in zip(requests, keys, strict=True):
            index = torch.arange(n, device=device)
            pages.append(page_table[b].long()[index // page_size])
            places.append(index % page_size)
        self.rows, self.where = rows_of(requests), (torch.cat(pages), torch.cat(places))
        most = max(counts[b] for b in requests), max(keys)
        self.sizes = (starts([counts[b] for b in requests]), starts(keys), *most)
        others = [b for b, n in enumerate(counts) if n and b not in requests]
        if others:
            table, lens = page_table[others], prefix_lens[others]
            self.rest = rows_of(others), (table, lens, starts([counts[b] for b in others]))

    def attend(self, q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, scale: float) -> torch.Tensor:
        """The output [R, Hq, D] in q's dtype. Keys are gathered, since flash-attn needs pages of 256 tokens."""
        out = torch.empty_like(q)
        k, v = k_cache[self.where], v_cache[self.where]  # [keys, Hkv, D]
        rows = q[self.rows].to(k.dtype)
        out[self.rows] = self.call(rows, k, v, *self.sizes, softmax_scale=scale, causal=True).to(q.dtype)
        if self.rest:
            rows, tables = self.rest
            out[rows] = tree_attention(q[rows], k_cache, v_cache, *tables, scale=scale)[0]
        return out


def prompts(call: Callable, page_table, prefix_lens, row_offsets, rows: int, page_size: int) -> Prompts | None:
    """The Prompts of a pass, or None where no request has more rows than a verification."""
    if rows - len(prefix_lens) < VERIFICATION:  # no need to wait for the device
        return None
    offsets = row_offsets.tolist()
    found = [b for b, (i, j) in enumerate(zip(offsets, offsets[1:], strict=False)) if j - i > VERIFICATION]
    return Prompts(call, found, page_table, prefix_lens, offsets, page_size) if found else None
