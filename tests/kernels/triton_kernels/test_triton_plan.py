"""The list of work of tree attention: its level changes no bit, its grid and memory follow what the batch needs."""

import numpy as np
import pytest
import torch
from attention_cases import make_case

from bench.shapes import BATCHES, MODELS, PAGE
from ssd.kernels.tree_attention import reference, triton_plan
from ssd.kernels.tree_attention import triton as form

CONTEXT = 131072
HEADER, RECORD, ITEM = (x.value for x in (triton_plan.HEADER, triton_plan.RECORD, triton_plan.ITEM))


@pytest.fixture(autouse=True)
def sizes(monkeypatch):
    """A function that sets the keys of a span and of a tile, and the spans of a node."""

    def use(span, tile, fan):
        for name, size in (("SPAN", span), ("TILE", tile), ("FAN", fan)):
            monkeypatch.setattr(form, name, size)

    use(16, 16, 2)
    return use


def moved(case, device):
    return [None if x is None else x.to(device) for x in case.args()]


def plan_of(args):
    q, k, _, *rest = args
    return form.plan_attention(q.shape, k, *rest)


def attend(args):
    return form.tree_attention(*args, scale=0.3, return_lse=True)


def decoded(case, b, t, device):
    """The row t of request b as a step of plain decoding, whose path is copied behind the prefix."""
    row, prefix = int(case.row_offsets[b]) + t, int(case.prefix_lens[b])
    index = torch.tensor(reference.visible_keys(prefix, t, None if case.mask is None else case.mask[row]))
    where = case.page_table[b, index // case.k.shape[1]].long(), index % case.k.shape[1]
    k, v = (x[where].unflatten(0, (-1, 1)).to(device) for x in (case.k, case.v))  # pages of one key
    table = torch.arange(len(index), dtype=torch.int32, device=device)[None]
    end, offsets = (torch.tensor(x, dtype=torch.int32, device=device) for x in ([len(index) - 1], [0, 1]))
    out, lse = attend([case.q[row : row + 1].to(device), k, v, table, end, offsets])
    return out[0], lse[0]


@pytest.mark.parametrize("tree", [None, 1])
def test_levels_and_heads_done_together_change_no_bit(device, monkeypatch, tree):
    """Unequal prefixes, a request without rows, rows that end in the middle of a span, a node and a list."""
    case = make_case([150, 30, 0, 64, 5], [3, 2, 4, 1, 0], 4, 2, 16, torch.float32, tree=tree)
    args, seen = moved(case, device), {}
    for scratch in (0, 9_000, 12_000, 14_000, 24_000, 10**8):
        monkeypatch.setattr(triton_plan, "SCRATCH", scratch)
        plan = plan_of(args)
        assert not plan.fold
        kind = int(plan.work[1]), plan.kv_heads
        seen[kind] = seen.get(kind) or attend(args)
    assert {level for level, _ in seen} == {0, 1, 2} and {heads for _, heads in seen} == {1, 2}
    wanted = reference.tree_attention(*case.args(), 0.3)
    for got in seen.values():
        assert all(torch.equal(x, y) for x, y in zip(got, seen[0, 2], strict=True))
        assert all(torch.allclose(x.cpu(), y, rtol=1e-5, atol=1e-5) for x, y in zip(got, wanted, strict=True))
    for b, t in ((0, 0), (0, 2), (1, 1), (2, 0), (2, 3), (3, 0)):
        row = int(case.row_offsets[b]) + t
        for x, y in zip(decoded(case, b, t, device), seen[0, 2], strict=True):
            assert torch.equal(x, y[row])


def test_a_busy_device_takes_whole_nodes(device, monkeypatch):
    """With as few programs as these, nodes keep all of them busy, and the memory would allow spans."""
    args = moved(make_case([400], [1], 2, 1, 16, torch.float32), device)
    spans = attend(args)
    assert int(plan_of(args).work[1]) == 0
    monkeypatch.setattr(triton_plan, "multiprocessors", lambda _: 1)
    assert int(plan_of(args).work[1]) == 1
    assert all(torch.equal(x, y) for x, y in zip(spans, attend(args), strict=True))


@pytest.mark.parametrize("tree", [None, 1])
def test_a_row_is_itself_among_any_number_of_requests(device, monkeypatch, tree):
    """64 requests, of which many have no row; the last ones also in batches of one and two, and in larger blocks."""
    prefixes, rows = [(37 * b) % 50 for b in range(64)], [b % 3 if b % 2 else 0 for b in range(64)]
    case = make_case(prefixes, rows, 2, 1, 16, torch.float16, tree=tree)
    q, k, v, table, prefix, offsets, mask = moved(case, device)
    out, lse = attend((q, k, v, table, prefix, offsets, mask))
    wanted = reference.tree_attention(*case.args(), 0.3)[0]
    torch.testing.assert_close(out.float().cpu(), wanted, rtol=4e-3, atol=4e-3)
    monkeypatch.setattr(triton_plan, "MOST_REQUESTS", 1)
    for first in (61, 62, 63, 33):
        begin = int(offsets[first])
        some = mask if mask is None else mask[begin:]
        rest = table[first:], prefix[first:], offsets[first:] - begin, some
        few = attend((q[begin:], k, v, *rest))
        assert torch.equal(few[0], out[begin:]) and torch.equal(few[1], lse[begin:])


@pytest.mark.parametrize("tree", [None, 1])
def test_columns_that_nobody_needs_change_neither_bits_nor_the_list(device, tree):
    case = make_case([70, 0], [2, 3], 4, 2, 16, torch.float16, tree=tree)
    q, k, v, table, *rest = moved(case, device)
    wide = torch.cat([table, torch.full((2, 40_000), 2**30, dtype=torch.int32, device=device)], 1)
    narrow, plan = plan_of((q, k, v, table, *rest)), plan_of((q, k, v, wide, *rest))
    packed = slice(HEADER + RECORD * len(q), HEADER + RECORD * len(q) + ITEM * int(plan.work[0]))
    assert torch.equal(narrow.work[:2], plan.work[:2])
    assert torch.equal(*(p.work[packed].view(-1, ITEM)[:, :7] for p in (narrow, plan)))
    assert plan.programs <= 2 * triton_plan.multiprocessors(q.device)
    for x, y in zip(attend((q, k, v, table, *rest)), attend((q, k, v, wide, *rest)), strict=True):
        assert torch.equal(x, y)


def calls():
    """(name, model, rows of a request, requests, slots that a mask tells of, 0 for a chain) at the longest context."""
    for m in MODELS.values():
        for batch in BATCHES:
            for rows in (1, 8, 64):
                yield f"{m.name} {batch} trees of {rows}", m, rows, batch, rows
                yield f"{m.name} {batch} chains of {rows}", m, rows, batch, 0
            yield f"{m.name} {batch} forests", m, 24, batch, 96
        yield f"{m.name} 8 chains of 16", m, 16, 8, 0  # the fewest tiles of rows whose parts do not fit
        for rows in (250, 512):
            yield f"{m.name} prompt of {rows}", m, rows, 1, 0


@pytest.mark.parametrize("model", MODELS)
def test_grid_and_memory_at_the_longest_context(device, sizes, model):
    """Of programs that are launched, at least one in 1.3 has spans to reduce; parts and list take 64 MB at most."""
    sizes(256, 64, 16)
    for name, m, rows, batch, slots in calls():
        if m.name != model:
            continue
        prefix = CONTEXT - (slots or rows)
        q = torch.zeros(1, dtype=torch.bfloat16, device=device).expand(rows * batch, m.heads, m.head_dim)
        k = torch.zeros(1, dtype=torch.bfloat16, device=device).expand(9, PAGE, m.kv_heads, m.head_dim)
        table = torch.zeros(1, dtype=torch.int32, device=device).expand(batch, CONTEXT // PAGE)
        prefix_lens = torch.full((batch,), prefix, dtype=torch.int32, device=device)
        offsets = torch.arange(0, rows * batch + 1, rows, dtype=torch.int32, device=device)
        mask = torch.ones(rows * batch, -(-slots // 64), dtype=torch.int64, device=device) if slots else None
        plan = form.plan_attention(q.shape, k, table, prefix_lens, offsets, mask)
        size = sum(t.nbytes for t in (plan.work, plan.part_acc, plan.part_ml))
        assert size <= 64_000_000, (name, size)
        packed = int(plan.work[0])
        lone = rows * batch * -(-m.heads // m.kv_heads // triton_plan.ROWS_ALONE) if slots else 0
        start = HEADER + RECORD * rows * batch
        items = plan.work[start : start + ITEM * (packed + lone)].view(-1, ITEM).cpu()
        full = (items[:, 4] < items[:, 5]).repeat_interleave(plan.kv_heads)
        busy = len((full.nonzero()[:, 0] % plan.programs).unique())
        assert plan.programs <= 1.3 * busy, (name, plan.programs, busy)
        spans = np.zeros(rows * batch * m.heads // m.kv_heads, dtype=int)  # in items of tiles, of each packed row
        for _, row, count, tile, first, last, *_ in items[:packed].tolist():
            begin, end = (min((tile + i) * plan.rows_of_tile, count * m.heads // m.kv_heads) for i in (0, 1))
            spans[row * m.heads // m.kv_heads :][begin:end] += last - first
        assert (spans == (prefix if slots else CONTEXT) // 256).all(), name
