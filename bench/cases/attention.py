"""Tree attention on a paged cache, against torch SDPA with a dense mask after gathering the pages.

A tree of T rows (each node's parent drawn among the nodes before it) under a prefix of L tokens: decoding is T = 1.
"""

import torch
import torch.nn.functional as F

from ssd.kernels import tree_attention
from ssd.model import memory

from . import Case, copies, twice_torch

MODELS = {  # query heads, KV heads, head_dim
    "SmolLM2-135M": (9, 3, 64),
    "Llama-1B": (32, 8, 64),
    "Llama-8B": (32, 8, 128),
    "Llama-70B/8": (8, 1, 128),
}
PREFIXES = (128, 1024, 8192, 32768)
ROWS = (1, 5, 8, 16, 32, 64)
PAGE = 16


def tree_mask(rows: int) -> torch.Tensor:
    """Words of a random tree: a node sees its ancestors and itself."""
    words = [1]
    for i in range(1, rows):
        words.append(words[int(torch.randint(max(0, i - 4), i, ()))] | 1 << i)
    return torch.tensor([w - (1 << 64) if w >> 63 else w for w in words]).unsqueeze(1)


def cases(device: str):
    if device != "cpu":
        return
    for model, (heads, kv_heads, head_dim) in MODELS.items():
        pool = max(copies(2 * 2 * PAGE * kv_heads * head_dim), max(PREFIXES) // PAGE + 4)
        block = torch.randn(2, 64, PAGE, kv_heads, head_dim).bfloat16()
        k, v = (memory.empty((-(-pool // 64), *b.shape), b.dtype).copy_(b).flatten(0, 1) for b in block)
        for prefix in PREFIXES:
            for rows in ROWS:
                yield case(model, heads, k, v, prefix, rows)


def case(model: str, heads: int, k: torch.Tensor, v: torch.Tensor, prefix: int, rows: int) -> Case:
    kv_heads, head_dim = k.shape[2:]
    length = prefix + rows
    pages = -(-length // PAGE)
    many = len(k) // pages
    tables = torch.randperm(len(k)).int()[: many * pages].view(many, 1, pages)
    q, mask, scale = torch.randn(rows, heads, head_dim), tree_mask(rows), head_dim**-0.5
    prefix_lens, row_offsets = torch.tensor([prefix], dtype=torch.int32), torch.tensor([0, rows], dtype=torch.int32)
    dense = torch.ones(rows, length, dtype=torch.bool)
    dense[:, prefix:] = mask >> torch.arange(rows) & 1 > 0

    def run(turn):
        table = tables[turn % many]
        return tree_attention(q, k, v, table, prefix_lens, row_offsets, mask, scale=scale)[0]

    def gathered(cache, turn):
        return cache[tables[turn % many, 0]].flatten(0, 1)[:length].transpose(0, 1)[None]

    def sdpa(turn):
        keys, values = gathered(k, turn), gathered(v, turn)
        query = q.transpose(0, 1)[None].to(keys.dtype)
        y = F.scaled_dot_product_attention(query, keys, values, attn_mask=dense, scale=scale, enable_gqa=True)
        return y[0].transpose(0, 1)

    def check():
        keys, values = (gathered(c, 0)[0].double().repeat_interleave(heads // kv_heads, 0) for c in (k, v))
        scores = q.double().transpose(0, 1) @ keys.transpose(1, 2) * scale
        exact = scores.masked_fill(~dense, -torch.inf).softmax(-1) @ values
        return twice_torch(run(0), sdpa(0), exact.transpose(0, 1))

    return Case(
        op="tree_attention",
        shape=f"{model} T={rows} L={prefix}",
        run=run,
        bytes=2 * 2 * length * kv_heads * head_dim + 2 * 4 * rows * heads * head_dim + mask.nbytes,
        flops=4 * rows * heads * head_dim * length,
        check=check,
        baselines={"torch SDPA": sdpa},
    )
