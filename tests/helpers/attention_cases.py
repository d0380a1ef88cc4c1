"""Random ragged batches over a paged cache, whose unused pages are NaN and whose unused table entries are junk."""

from dataclasses import dataclass

import torch

NOISE = {torch.float32: 4e-6, torch.bfloat16: 4e-3, torch.float16: 5e-4}


@dataclass
class Case:
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    page_table: torch.Tensor
    prefix_lens: torch.Tensor
    row_offsets: torch.Tensor
    mask: torch.Tensor | None

    def args(self, mask="own"):
        mask = self.mask if isinstance(mask, str) else mask
        return self.q, self.k, self.v, self.page_table, self.prefix_lens, self.row_offsets, mask


def words(seen):
    """Packs booleans [R, 64 W] into int64 words [R, W]."""
    return (seen.unflatten(1, (-1, 64)).long() << torch.arange(64)).sum(-1)


def ancestors(parents):
    """Booleans [n, n]: node i sees node j if j is i or an ancestor of i; parents[i] < i, -1 for a root."""
    seen = torch.zeros(len(parents), len(parents), dtype=torch.bool)
    for i, parent in enumerate(parents):
        if parent >= 0:
            seen[i] = seen[parent]
        seen[i, i] = True
    return seen


def tree_mask(parents_of, num_words):
    out = []
    for parents in parents_of:
        seen = torch.zeros(len(parents), 64 * num_words, dtype=torch.bool)
        seen[:, : len(parents)] = ancestors(parents)
        out.append(words(seen))
    return torch.cat(out)


def random_parents(n, g):
    return [-1 if i == 0 else int(torch.randint(0, i, (1,), generator=g)) for i in range(n)]


def make_case(prefixes, rows, heads, kv_heads, d, dtype, page_size=16, mask=None, tree=None, seed=0, slots=None):
    """A random ragged batch. slots: tree slots of each request that exist in the cache (its rows)."""
    g = torch.Generator().manual_seed(seed)
    slots = rows if slots is None else slots
    used = [-(-(p + s) // page_size) if r else 0 for p, s, r in zip(prefixes, slots, rows, strict=True)]
    width, pages = max(used) + 2, sum(used) + 3
    k = torch.full((pages, page_size, kv_heads, d), float("nan"), dtype=dtype)
    v = torch.full((pages, page_size, kv_heads, d), float("nan"), dtype=dtype)
    table = torch.full((len(rows), width), 2**31 - 1, dtype=torch.int32)
    free = torch.randperm(pages, generator=g).int()
    for b, n in enumerate(used):
        table[b, :n], free = free[:n], free[n:]
        index = torch.arange(prefixes[b] + slots[b] if n else 0)
        where = table[b, index // page_size].long(), index % page_size
        k[where] = torch.randn(len(index), kv_heads, d, generator=g).to(dtype)
        v[where] = torch.randn(len(index), kv_heads, d, generator=g).to(dtype)
    q = torch.randn(sum(rows), heads, d, generator=g).to(dtype)
    if tree is not None:
        mask = tree_mask([random_parents(r, g) for r in rows], tree)
    offsets = torch.tensor([0, *rows]).cumsum(0).int()
    return Case(q, k, v, table, torch.tensor(prefixes, dtype=torch.int32), offsets, mask)


def torch_error(case, wanted, scale, softcap=0.0):
    """Error of torch's own computation in the same dtype, row by row: half of what a kernel may have."""
    from ssd.kernels.tree_attention.reference import visible_keys

    group, worst = case.q.shape[1] // case.k.shape[2], 0.0
    for b in range(len(case.prefix_lens)):
        for r in range(int(case.row_offsets[b]), int(case.row_offsets[b + 1])):
            row_mask = None if case.mask is None else case.mask[r]
            index = torch.tensor(visible_keys(int(case.prefix_lens[b]), r - int(case.row_offsets[b]), row_mask))
            if not len(index):
                continue
            where = case.page_table[b, index // case.k.shape[1]].long(), index % case.k.shape[1]
            k = case.k[where].repeat_interleave(group, 1).to(case.q.dtype)
            v = case.v[where].repeat_interleave(group, 1).to(case.q.dtype)
            s = torch.einsum("hd,khd->hk", case.q[r], k) * scale
            if softcap:
                s = softcap * torch.tanh(s / softcap)
            out = torch.einsum("hk,khd->hd", s.softmax(-1), v)
            worst = max(worst, (out.float() - wanted[r]).abs().max().item())
    return worst
