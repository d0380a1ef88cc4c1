"""Passes of a draft model: one batched tree-attention pass over nodes of all trees of all sequences."""

from collections.abc import Sequence
from itertools import accumulate
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch

from ssd import kernels
from ssd.model.batch import Batch
from ssd.model.draft import Draft

from ..devices.placement import CPU, Placement, array
from ..engine.tree import words
from ..sampling.logits_processors import process_draft_logits
from .draft_memory import PAGE_SIZE, DraftMemory, DraftPages, pages_of
from .draft_sampling import Candidates


class DraftRows(NamedTuple):
    """The rows of one sequence in a pass."""

    slot: int
    prefix: int  # every row sees the KV indices below it
    tokens: list[int]
    at: list[int]  # KV index of each row
    positions: list[int]
    bits: list[int] | None  # by row: the KV indices behind the prefix that it sees, as bits; None: causal
    outputs: list[int]  # rows that have logits


def output_rows(rows: Sequence[DraftRows]) -> list[int]:
    """The rows of a pass that have logits, in order."""
    firsts = accumulate((len(r.tokens) for r in rows), initial=0)
    return [first + n for r, first in zip(rows, firsts, strict=False) for n in r.outputs]


class DraftRunner:
    """A draft and passes over its memory, by default one of its own that is large enough for every slot.

    Each slot holds one sequence of at most max_len tokens, and behind them at most `nodes` nodes of its trees; its
    pages are to be reserved before a pass.
    """

    def __init__(
        self, draft: Draft, *, max_batch: int, max_len: int, nodes: int, placement: Placement = CPU,
        memory: DraftMemory | None = None,
    ):  # fmt: skip
        self.draft, self.placement = draft, placement
        self.max_batch, self.nodes = max_batch, nodes
        self.rounds_masks = placement.remote  # to powers of two words: a kernel is compiled for each number
        self.max_len = min(max_len, len(draft.cos))
        most = pages_of(self.max_len + nodes)
        self.room = most * PAGE_SIZE  # indices of a slot at most
        self.memory = memory or DraftMemory(draft, max_batch * most, placement=placement)
        self.kv = self.memory.kv
        self.pages = DraftPages(self.memory, max_batch, most)
        self.own = (draft.config.num_layers,) if draft.feature_layers else ()  # its hidden states that enter again
        self.passes = self.rows = 0  # so far
        self.seconds, self.timed = 0.0, 0  # passes of at most 64 rows: their time and their number

    def forward(self, rows: list[DraftRows], hidden: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Run a pass. Returns the logits of the outputs and the features of all rows."""
        offsets = list(accumulate((len(r.tokens) for r in rows), initial=0))
        slots, mask = [r.slot for r in rows], None
        if any(r.bits is not None for r in rows):
            bits = [b for r in rows for b in (r.bits or [(1 << k + 1) - 1 for k in range(len(r.tokens))])]
            wide = -(-max(b.bit_length() for b in bits) // 64)
            if self.rounds_masks:
                wide = 1 << (wide - 1).bit_length()
            mask = torch.from_numpy(words(bits, wide))
        batch = Batch(
            ids=array([t for r in rows for t in r.tokens]),
            positions=array([p for r in rows for p in r.positions], np.int32),
            slots=torch.from_numpy(np.concatenate([self.pages.where[r.slot][r.at] for r in rows])),
            row_offsets=array(offsets, np.int32),
            prefix_lens=array([r.prefix for r in rows], np.int32),
            page_table=torch.from_numpy(self.pages.table[slots]),
            logit_rows=array(output_rows(rows)),
            mask=mask,
        )
        begin, few = perf_counter(), offsets[-1] <= 64
        with self.pages.at_work():
            out = self.draft.forward_features(self.placement.batch(batch), self.kv, self.own, hidden)
        self.passes += 1
        self.rows += offsets[-1]
        self.timed += few
        self.seconds += few * (perf_counter() - begin)
        return out

    def candidates(self, sampler, logits, sequences, positions, width: int) -> Candidates:
        """The candidates that a sampler (CoupledSampler or RejectionSampler) finds in logits."""
        return sampler.candidates(logits, sequences, positions, width, self.draft.ids, self.placement)

    def process(self, logits: torch.Tensor, nodes: list[tuple]) -> torch.Tensor:
        """Logits of this draft after the logits processors of their requests, see process_draft_logits."""
        return process_draft_logits(logits, nodes, self.draft.ids, self.draft.config.vocab_size)

    def hidden(self, features: torch.Tensor, begin: int, end: int) -> torch.Tensor | None:
        """What enters with tokens begin to end - 1: the feature of the token before each, 0 for the first of all.

        features: the target's, by token.
        """
        if not self.own:
            return None
        fused = self.draft.fuse(*self.placement.put(features[max(begin - 1, 0) : end - 1]))
        return fused if begin else torch.cat([fused.new_zeros(1, fused.shape[1]), fused])

    def move(self, pairs: list[tuple[int, int, int]]) -> None:
        """Move KV, (slot, from index, to index) each, as if all at once."""
        slots = [self.pages.where[slot, [old, new]] for slot, old, new in pairs if old != new]
        if not slots:
            return
        with self.placement.stream(), self.pages.at_work():
            kernels.kv_copy(self.kv.k, self.kv.v, *self.placement.put(*map(array, zip(*slots, strict=True))))
