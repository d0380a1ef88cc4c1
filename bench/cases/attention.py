"""Tree attention on a paged cache: chains of one row (decoding), trees, and the forest of a draft.

The parent of a node is among the four nodes before it. Baselines are in attention_peers.
"""

from collections.abc import Iterator
from functools import cached_property

import torch

from ssd.kernels import tree_attention
from ssd.model import memory

from ..process import cold_bytes
from ..shapes import BASE, PAGE, Model, Size
from . import Case, twice_torch
from .attention_peers import peers, sdpa

COLD = 512 << 20  # bytes that no cache of a GPU holds


def signed(words: list[list[int]]) -> torch.Tensor:
    """An int64 tensor with the bits of unsigned words."""
    return torch.tensor([[w - (1 << 64) if w >> 63 else w for w in row] for row in words])


def tree_mask(rows: int) -> torch.Tensor:
    """Mask words [rows, 1] of a random tree, where a node sees its ancestors and itself."""
    words = [1]
    for i in range(1, rows):
        words.append(words[int(torch.randint(max(0, i - 4), i, ()))] | 1 << i)
    return signed([[w] for w in words])


def forest_mask(branches: int, depth: int) -> torch.Tensor:
    """Mask words [branches, W] of the deepest nodes of a forest; branch m has slots m, m + branches, m + 2 branches and
    so on."""
    bits = [sum(1 << m + step * branches for step in range(depth)) for m in range(branches)]
    width = -(-branches * depth // 64)
    return signed([[b >> 64 * w & (1 << 64) - 1 for w in range(width)] for b in bits])


class Inputs:
    """The arguments of tree attention, with page tables [copies, B, pages] that take turns, and those of its peers."""

    def __init__(self, size: Size, k: torch.Tensor, v: torch.Tensor, cold: int, room: torch.Tensor | None = None):
        """cold: bytes that no cache holds; room: memory for `dense`, which overwrites that of earlier inputs."""
        self.size = size
        self.k = k
        self.v = v
        self.room = room
        self.device = k.device
        m = size.model
        batch = size.batch
        pages = -(-size.length // PAGE)
        copies = max(1, min(-(-cold // size.kv_bytes), len(k) // (batch * pages)))
        places = torch.randperm(len(k), device=k.device)[: copies * batch * pages]
        self.tables = places.int().view(copies, batch, pages)
        self.mask = forest_mask(size.rows, size.depth) if size.depth else tree_mask(size.rows)
        seen = torch.ones(size.rows, size.length, dtype=torch.bool)
        bits = self.mask.unsqueeze(-1) >> torch.arange(64) & 1
        seen[:, size.prefix :] = bits.flatten(1)[:, : size.length - size.prefix] > 0
        self.seen = seen.to(k.device)
        self.mask = self.mask.repeat(batch, 1).to(k.device)
        dtype = torch.float32 if k.device.type == "cpu" else k.dtype
        self.q = torch.randn(batch * size.rows, m.heads, m.head_dim, device=k.device).to(dtype)  # [B T, Hq, D]
        self.prefix_lens = torch.full((batch,), size.prefix, dtype=torch.int32, device=k.device)
        self.row_offsets = torch.arange(batch + 1, dtype=torch.int32, device=k.device) * size.rows
        self.scale = m.head_dim**-0.5

    @cached_property
    def dense(self) -> list[list[torch.Tensor]]:
        """Contiguous K and V [B, Hkv, length, D] of each turn, so that no peer has to gather them."""
        made = []
        room = self.room
        for table in self.tables.long():
            pair = [c[table].flatten(1, 2)[:, : self.size.length].transpose(1, 2) for c in (self.k, self.v)]
            if room is None:
                pair = [c.contiguous() for c in pair]
            else:
                n = pair[0].numel()
                pair = [room[i * n : (i + 1) * n].view(c.shape).copy_(c) for i, c in enumerate(pair)]
                room = room[2 * n :]
            made.append(pair)
        return made

    def exact(self) -> torch.Tensor:
        """The result of the first request, float64 [T, Hq, D]."""
        m = self.size.model
        keys, values = (x[0].double() for x in self.dense[0])
        q = self.q[: self.size.rows].double().unflatten(1, (m.kv_heads, -1)).permute(1, 2, 0, 3)  # [Hkv, G, T, D]
        scores = (q @ keys.mT.unsqueeze(1) * self.scale).masked_fill_(~self.seen, -torch.inf)
        return (scores.softmax(-1) @ values.unsqueeze(1)).permute(2, 0, 1, 3).flatten(1, 2)


def case(x: Inputs, backend: str, compiled: bool = False) -> Case:
    """The case of one size. compiled: whether flex_attention is a baseline, which takes seconds to compile a shape."""
    size = x.size
    m = x.size.model
    rows = x.size.rows
    by_torch = sdpa(x)

    def run(turn):
        table = x.tables[turn % len(x.tables)]
        return tree_attention(x.q, x.k, x.v, table, x.prefix_lens, x.row_offsets, x.mask, scale=x.scale)[0]

    def check():
        theirs = by_torch(0)[:1].reshape(x.q[:rows].shape)
        return twice_torch(run(0)[:rows], theirs, x.exact())

    return Case(
        op="tree_attention",
        shape=str(size),
        run=run,
        bytes=size.kv_bytes + 2 * x.q.nbytes + x.mask.nbytes,
        flops=4 * size.batch * m.heads * m.head_dim * int(x.seen.sum()),
        check=check,
        baselines=peers(x, by_torch, compiled, backend != "cpu"),
        backend=backend,
        agreement=0.02,
    )


def kv_cache(m: Model, pages: int, device: str) -> list[torch.Tensor]:
    """Random K and V [pages, PAGE, Hkv, D]. On the CPU they are on huge pages and repeat the values of 64 pages."""
    shape = (PAGE, m.kv_heads, m.head_dim)
    if device != "cpu":
        return [torch.randn(pages, *shape, device=device, dtype=torch.bfloat16) for _ in range(2)]
    block = torch.randn(2, 64, *shape).bfloat16()
    return [memory.empty((-(-pages // 64), *b.shape), b.dtype).copy_(b).flatten(0, 1) for b in block]


def cases(device: str, chosen: list[Size]) -> Iterator[Case]:
    """The cases of all chosen sizes: on the CPU model by model, each with one cache; on a GPU in the order given, since
    time may run out."""
    if device != "cpu":
        for size in chosen:
            pages = size.batch * -(-size.length // PAGE)
            cache = kv_cache(size.model, pages * max(1, min(8, COLD // size.kv_bytes)), device)
            yield case(Inputs(size, *cache, COLD), "triton", is_base(size))
        return
    for model in dict.fromkeys(size.model for size in chosen):
        own = [size for size in chosen if size.model == model]
        most = max(size.batch * -(-size.length // PAGE) for size in own)
        page_bytes = 4 * PAGE * model.kv_heads * model.head_dim
        cache = kv_cache(model, max(most, -(-cold_bytes() // page_bytes)), device)
        room = memory.empty((2 * cache[0].numel(),), cache[0].dtype)
        for size in own:
            yield case(Inputs(size, *cache, cold_bytes(), room), "cpu", is_base(size) and model.name == "Llama-8B")


def is_base(size: Size) -> bool:
    return not size.depth and BASE == {name: getattr(size, name) for name in BASE}
