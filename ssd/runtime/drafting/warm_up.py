"""Compiles the kernels that a draft's passes need, see engine/warm_up.py."""

from collections.abc import Iterable, Iterator
from itertools import product

import torch

from ..engine.warm_up import asker, batches, numbers, shares, warm_up_moves
from .draft_runner import DraftRows, DraftRunner


def draft_passes(max_batch: int, chunk: int, nodes: int, seen: int, longest: int) -> Iterator[list[DraftRows]]:
    """What the passes of a draft may hold: rows of prompts, and up to `nodes` nodes of a forest. seen: how many indices
    behind the prefix a mask tells of, at most."""
    masks = sorted({min(64 << i, seen) for i in range(4)})
    for sequences in batches(max_batch):
        for rows in numbers(sequences, min(chunk + sequences, sequences * longest)):
            spans = [range(n) for n in shares(rows, sequences)]
            yield [DraftRows(i, 0, [0] * len(s), s, s, None, s[-1:]) for i, s in enumerate(spans)]
        for rows, bits in product(numbers(sequences, sequences * min(nodes, longest)), masks):
            spans = [range(n) for n in shares(rows, sequences)]
            yield [DraftRows(i, 0, [0] * len(s), s, s, [1 << bits - 1 | 1] * len(s), s) for i, s in enumerate(spans)]


def warm_up_draft(runner: DraftRunner, sampler, widths: Iterable[int], chunk: int, seen: int) -> Iterator[None]:
    """Run the passes of a draft, one at each step, where its device compiles kernels. widths: of the candidates that
    are asked for; chunk: rows of prompts in a pass; seen: as in draft_passes."""
    draft, placement = runner.draft, runner.placement
    if not placement.remote:
        return
    counts = runner.passes, runner.rows, runner.seconds, runner.timed
    seen = min(seen, runner.room)  # there is no KV beyond
    for rows in draft_passes(runner.max_batch, chunk, runner.nodes, seen, runner.max_len):
        with torch.inference_mode(), placement.stream():
            hidden = None
            if runner.own:
                width = draft.config.hidden_size if rows[0].bits else draft.feature_width
                hidden = placement.put(torch.zeros(sum(len(r.tokens) for r in rows), width))[0]
                hidden = hidden if rows[0].bits else draft.fuse(hidden)
            logits, _ = runner.forward(rows, hidden)
        yield
    with torch.inference_mode(), placement.stream():
        for width in widths:
            runner.candidates(sampler, logits[:1], [asker(1)], [1], width)
    warm_up_moves(runner.kv, placement, runner.max_batch * runner.nodes)
    runner.passes, runner.rows, runner.seconds, runner.timed = counts
