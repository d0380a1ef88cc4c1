"""The work of tree attention in a list that the device makes, so that nothing follows the page table's width.

FAN spans, at fixed positions, fold into a node, and nodes into the row. A part is what one program computes: a span
(level 0), a node (level 1) or all nodes (level 2). At levels 1 and 2 one more part holds the spans behind the last
whole node, and at level 2 the other the nodes before them. So whatever the level, the same folds lead to the row: it
changes no bit. It is chosen for the whole batch: the highest at which the programs are evenly busy, else the lowest
whose parts fit into the memory.

The list is one int32 tensor: HEADER (packed items, level); by row a RECORD (its first part, the distance to the next,
spans in these parts, spans in all); by item an ITEM (request, first row, rows, tile, first span, last span, first
part). Packed items are a tile of rows and a part; with a mask every row's last spans follow as items of their own. Each
is done for every KV head; where the parts of all heads would not fit into the memory, for a few heads at a time.
"""

from dataclasses import dataclass
from functools import cache

import torch
import triton
import triton.language as tl

from .triton_span import popcount

HEADER, RECORD, ITEM = tl.constexpr(8), tl.constexpr(4), tl.constexpr(8)
LEVELS = tl.constexpr(3)
ROWS_ALONE = 16  # packed rows of a tile that holds one row of a tree
MOST_REQUESTS = 128  # with more, another kernel is compiled
SCRATCH = 60_000_000  # bytes of parts, unless those of one KV head need more


@triton.jit
def node_spans(level, FAN: tl.constexpr):
    """The spans of a node; at the last level more than there are."""
    return tl.where(level == 0, 1, tl.where(level == 1, FAN, 1 << 30))


@triton.jit
def part_end(part, level, spans, FAN: tl.constexpr):
    """The span behind a part of a request, 0 for part -1."""
    whole = spans // node_spans(level, FAN)
    left = node_spans(level - 1 - (part - whole), FAN)
    return tl.where(part < whole, (part + 1) * node_spans(level, FAN), spans // left * left)


@triton.jit
def choose_level(rows, tiles, spans, capacity, programs, kv_heads, FAN: tl.constexpr):
    longest = tl.max(spans, 0)
    work = tl.sum(tiles.to(tl.int64) * spans, 0) * kv_heads
    chosen, finest = longest * 0 - 1, longest * 0 + LEVELS - 1
    for i in tl.static_range(LEVELS):
        level = longest * 0 + LEVELS - 1 - i
        node = node_spans(level, FAN)
        parts = spans // node + level
        rounds = tl.cdiv(tl.sum(tiles.to(tl.int64) * parts, 0) * kv_heads, programs)
        fits = tl.sum(rows.to(tl.int64) * parts, 0) <= capacity
        busy = (longest > 0) & (10 * work >= 9 * rounds * programs * tl.minimum(node, longest))
        chosen = tl.where((chosen < 0) & fits & busy, level, chosen)
        finest = tl.where(fits, level, finest)
    return tl.where(chosen < 0, finest, chosen)


@triton.jit
def pick(own, x):
    return tl.sum(tl.where(own, x, 0), 0)


@triton.jit
def store_item(p_item, request, row, rows, tile, first, last, part, there):
    tl.store(p_item, request, mask=there)
    tl.store(p_item + 1, row, mask=there)
    tl.store(p_item + 2, rows, mask=there)
    tl.store(p_item + 3, tile, mask=there)
    tl.store(p_item + 4, first, mask=there)
    tl.store(p_item + 5, last, mask=there)
    tl.store(p_item + 6, part, mask=there)


@triton.jit(
    do_not_specialize=["num_requests", "num_rows", "capacity", "alone_spans", "programs", "kv_heads", "group", "words"]
)
def tree_attention_plan_kernel(
    prefix_lens, row_offsets, mask, work, num_requests, num_rows, capacity, alone_spans, programs, kv_heads, group,
    words, BM: tl.constexpr, BA: tl.constexpr, BB: tl.constexpr, FOLD: tl.constexpr, SPAN: tl.constexpr,
    FAN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Program b writes the records of the rows of request b, and its items. words: of 32 bits, 0 without a mask."""
    b = tl.program_id(0)
    o_b, o_i = tl.arange(0, BB), tl.arange(0, BLOCK)
    m_b = o_b < num_requests
    offsets = tl.load(row_offsets + o_b, mask=m_b, other=0)
    rows = tl.load(row_offsets + o_b + 1, mask=m_b, other=0) - offsets
    prefix = tl.load(prefix_lens + o_b, mask=m_b, other=0)
    tiles = tl.cdiv(rows * group, BM)
    spans = tl.where(o_b * 0 + words > 0, prefix // SPAN, tl.cdiv(prefix + rows, SPAN))
    spans = tl.where(rows > 0, spans, 0)
    level = choose_level(rows, tiles, spans, capacity, programs, kv_heads, FAN)
    parts = spans // node_spans(level, FAN) + level
    if FOLD:
        parts = spans * 0 + 1
    before, own = o_b < b, o_b == b
    part0 = pick(before, rows * parts)
    item0 = pick(before, tiles * parts)
    packed = tl.sum(tiles * parts, 0)
    if b == 0:
        tl.store(work, packed)
        tl.store(work + 1, level)
    row0, rows_b, prefix_b = pick(own, offsets), pick(own, rows), pick(own, prefix)
    tiles_b, spans_b, parts_b = pick(own, tiles), pick(own, spans), pick(own, parts)
    p_items = work + HEADER + RECORD * num_rows
    for start in range(0, tiles_b * parts_b, BLOCK):
        o = start + o_i
        tile = o % tiles_b
        part = o // tiles_b
        if FOLD:  # the longest first
            tile = tiles_b - 1 - tile
            first, last = o * 0, o * 0 + spans_b
        else:
            first, last = part_end(part - 1, level, spans_b, FAN), part_end(part, level, spans_b, FAN)
        p_item = p_items + ITEM * (item0 + o)
        store_item(p_item, b, row0, rows_b, tile, first, last, part0 + part * rows_b, o < tiles_b * parts_b)
    for start in range(0, rows_b, BLOCK):
        t = start + o_i
        m_t = t < rows_b
        row = row0 + t
        last = t * 0 + spans_b
        if words > 0:
            bits = t * 0
            for w in range(0, words):
                bits += popcount(tl.load(mask + row.to(tl.int64) * words + w, mask=m_t, other=0))
            last = tl.cdiv(prefix_b + bits, SPAN)
            for sub in range(0, tl.cdiv(group, BA)):
                item = packed + row * tl.cdiv(group, BA) + sub
                store_item(p_items + ITEM * item, b, row, 1, sub, spans_b, last, capacity + row * alone_spans, m_t)
        p_record = work + HEADER + RECORD * row
        tl.store(p_record, part0 + t, mask=m_t)
        tl.store(p_record + 1, rows_b, mask=m_t)
        tl.store(p_record + 2, spans_b, mask=m_t)
        tl.store(p_record + 3, last, mask=m_t)


@cache
def multiprocessors(device: torch.device) -> int:
    """How many a device has; those of an H100 where it is no GPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 132


@dataclass
class Plan:
    """The work of a pass, the same for all its layers, and the memory in which their parts lie."""

    page_table: torch.Tensor
    prefix_lens: torch.Tensor
    mask: torch.Tensor | None
    work: torch.Tensor  # int32, see above
    part_acc: torch.Tensor  # float32 [parts, D]
    part_ml: torch.Tensor  # float32 [parts, 2]: maximum and sum
    programs: int  # of the grid
    kv_heads: int  # that are done together
    rows_of_tile: int  # packed rows
    warps: int  # of a program
    fold: bool  # a program folds all spans of its rows: there are no parts
    capacity: int  # rows of parts that tiles may have; those of lone rows follow
    alone_spans: int  # spans of a lone row at most


def make_plan(q_shape, kv_shape, page_table, prefix_lens, row_offsets, mask, span: int, fan: int) -> Plan:
    """The Plan of q [R, Hq, D] over pages of kv_shape [page_size, Hkv], made without waiting for the device.

    Grid and memory are bounded whatever the width of page_table; where it holds few pages they are smaller.
    """
    (num_rows, num_heads, dim), (page_size, kv_heads) = q_shape, kv_shape
    device, num_requests, group = prefix_lens.device, prefix_lens.shape[0], num_heads // kv_heads
    words = 0 if mask is None else 2 * mask.shape[1]
    bm = 16 if num_rows * group <= 16 * num_requests or dim > 128 else 32
    warps = 8 if bm * triton.next_power_of_2(dim) > 2048 else 4  # no bit depends on them; none of these spills
    most = multiprocessors(device) * 8 // warps  # programs that are resident at once
    keys = page_table.shape[1] * page_size
    spans = triton.cdiv(keys, span) if mask is None else max(keys - 1, 0) // span  # of a request, at most
    tiles = triton.cdiv(num_rows * group, bm)  # at least
    fold = mask is None and (spans <= 1 or 10 * tiles * kv_heads >= 9 * most)
    tiles = (num_rows * group + num_requests * (bm - 1)) // bm  # at most
    alone_spans = triton.cdiv(span - 1 + 32 * words, span) if words else 0
    alone = num_rows * triton.cdiv(group, ROWS_ALONE) if words else 0
    per_head = 4 * group * (dim + 2)  # bytes of a row's part
    least = num_rows * (LEVELS.value - 1 + alone_spans)  # rows of parts
    together = max(h for h in range(1, kv_heads + 1) if kv_heads % h == 0 and h * per_head * least <= SCRATCH or h == 1)
    unit = together * per_head + 4 * ITEM.value * triton.cdiv(group, bm)  # with its items
    room = (SCRATCH - num_rows * alone_spans * unit) // unit
    capacity = 0 if fold else min(num_rows * spans, max(room, (LEVELS.value - 1) * num_rows))
    items = alone + (tiles if fold else capacity * triton.cdiv(group, bm))
    parts = (capacity + num_rows * alone_spans) * together * group
    plan = Plan(
        page_table,
        prefix_lens,
        mask,
        torch.empty(HEADER.value + RECORD.value * num_rows + ITEM.value * items, dtype=torch.int32, device=device),
        torch.empty((parts, dim), dtype=torch.float32, device=device),
        torch.empty((parts, 2), dtype=torch.float32, device=device),
        min(most, (tiles * (1 if fold else spans) + alone) * together),
        together,
        bm,
        warps,
        fold,
        capacity,
        alone_spans,
    )
    if num_rows:
        tree_attention_plan_kernel[(num_requests,)](
            prefix_lens, row_offsets, row_offsets if mask is None else mask.view(torch.int32), plan.work, num_requests,
            num_rows, capacity, alone_spans, most, together, group, words, BM=bm, BA=ROWS_ALONE,
            BB=max(MOST_REQUESTS, triton.next_power_of_2(num_requests)), FOLD=fold, SPAN=span, FAN=fan, BLOCK=128,
            num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
    return plan
