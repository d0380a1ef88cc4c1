"""Random inputs of tree attention by the names of its arguments, and their rows as steps of plain decoding."""

import numpy as np
import torch

from ssd.kernels.tree_attention.reference import tree_attention, visible_keys

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def make(rng, rows, prefixes, heads=(4, 2), head_dim=64, dtype="bf16", page_size=16, mask=None, words=1, **options):
    """Tensors of a ragged batch. mask: None, "tree" (slots of its own rows) or "forest" (any slots)."""
    t = torch.Generator().manual_seed(int(rng.integers(1 << 30)))
    num_heads, kv_heads = heads
    total = sum(rows)
    slots = [n if mask is None else 64 * words for n in rows]
    table_len = max([(p + s + page_size - 1) // page_size for p, s in zip(prefixes, slots, strict=True)] + [1])
    pages = table_len * len(rows) + 3
    kv_shape = (pages, page_size, kv_heads, head_dim)
    k, v = (torch.full(kv_shape, float("nan"), dtype=DTYPES[dtype]) for _ in range(2))
    table = torch.from_numpy(rng.integers(-(1 << 30), 1 << 30, (len(rows), table_len)).astype(np.int32))  # junk
    free = rng.permutation(pages)
    masks = torch.zeros(total, words, dtype=torch.int64) if mask else None
    row = 0
    for b, (n, p) in enumerate(zip(rows, prefixes, strict=True)):
        used = n if mask != "forest" else 64 * words - 3
        seen = np.zeros(used, dtype=bool)
        for i in range(n) if mask else ():
            if mask == "tree":  # the slots of the parent and its own
                bits = 1 << i
                if i:
                    parent = int(rng.integers(max(0, i - 6), i))
                    bits |= int(masks[row + parent, 0]) & (2**64 - 1)
            else:
                bits = sum(1 << int(s) for s in rng.choice(used, min(9, used), replace=False))
            for w in range(words):
                word = bits >> 64 * w & (2**64 - 1)
                masks[row + i, w] = word - (1 << 64) if word >> 63 else word
            seen |= np.array([bits >> s & 1 for s in range(used)], dtype=bool)
        if mask is None:
            seen[:] = True
        for j in [*range(p), *(p + np.flatnonzero(seen))]:
            page = int(free[b * table_len + j // page_size])
            table[b, j // page_size] = page
            k[page, j % page_size] = torch.randn(kv_heads, head_dim, generator=t)
            v[page, j % page_size] = torch.randn(kv_heads, head_dim, generator=t)
        row += n
    q = torch.randn(total, num_heads, head_dim, generator=t)
    return {
        "q": q if options.pop("q_float", False) else q.to(DTYPES[dtype]),
        "k": k,
        "v": v,
        "page_table": table,
        "prefix_lens": torch.tensor(prefixes, dtype=torch.int32),
        "row_offsets": torch.tensor([0, *np.cumsum(rows)], dtype=torch.int32),
        "mask": masks,
        "scale": head_dim**-0.5,
        "softcap": 0.0,
        **options,
    }


def check(x, out, lse):
    """Asserts at most twice the error of torch in the cache's dtype, and the log-sum-exp."""
    args = [x[n] for n in ("page_table", "prefix_lens", "row_offsets", "mask", "scale", "softcap")]
    want, want_lse = tree_attention(x["q"], x["k"], x["v"], *args)
    torch.testing.assert_close(lse, want_lse, rtol=1e-3, atol=2e-2)
    dtype = x["k"].dtype
    weights_rounding = torch.finfo(dtype).eps * want.abs().max().item()
    assert torch.isfinite(out).all()
    assert (out.float() - want).abs().max().item() <= 2 * weights_rounding + 1e-3


def row_alone(rng, x, r):
    """Row r of x as plain decoding: the keys of its path, in order and in their own pages, with one row at their
    end."""
    offsets = x["row_offsets"].tolist()
    b = next(i for i in range(len(offsets) - 1) if offsets[i] <= r < offsets[i + 1])
    seen = visible_keys(int(x["prefix_lens"][b]), r - offsets[b], None if x["mask"] is None else x["mask"][r])
    index, size = torch.tensor(seen), x["k"].shape[1]
    where = x["page_table"][b, index // size].long(), index % size
    pages = (len(seen) + size - 1) // size
    table = torch.from_numpy(rng.permutation(pages + 2)[:pages].astype(np.int32))
    position = torch.arange(len(seen))
    caches = {}
    for name in "kv":
        caches[name] = torch.full((pages + 2, *x[name].shape[1:]), float("nan"), dtype=x[name].dtype)
        caches[name][table[position // size].long(), position % size] = x[name][where]
    return {
        **x,
        **caches,
        "q": x["q"][r : r + 1],
        "page_table": table[None],
        "prefix_lens": torch.tensor([len(seen) - 1], dtype=torch.int32),
        "row_offsets": torch.tensor([0, 1], dtype=torch.int32),
        "mask": None,
    }


def same_bits(a, b):
    return all(torch.equal(x.view(torch.uint8), y.view(torch.uint8)) for x, y in zip(a, b, strict=True))


SHAPES = [  # rows, prefixes, heads, head_dim, dtype, page_size, mask, words
    ([3, 1, 0, 5], [40, 300, 7, 0], (4, 2), 64, "bf16", 16, None, 1),
    ([3, 1, 0, 5], [40, 300, 7, 0], (4, 2), 64, "fp16", 16, "tree", 1),
    ([17], [250], (7, 1), 80, "bf16", 24, "tree", 1),
    ([2, 30], [513, 66], (3, 1), 96, "fp16", 16, None, 1),
    ([9], [20], (3, 1), 128, "bf16", 16, "forest", 3),
    ([4, 2], [256, 511], (8, 1), 128, "fp16", 32, "tree", 1),
    ([6], [255], (5, 1), 128, "bf16", 16, None, 1),
    ([1, 1, 1], [0, 63, 64], (2, 2), 256, "bf16", 16, None, 1),
    ([5], [270], (6, 2), 256, "fp16", 16, "tree", 1),
    ([2] * 35, [3] * 35, (1, 1), 64, "bf16", 16, "tree", 1),  # more requests than lanes
    ([2], [30], (40, 1), 64, "bf16", 16, "tree", 1),  # a group larger than a tile
]
