"""The tensors of a pass, filled in place: a step costs a few numpy writes per sequence and no allocation."""

from typing import NamedTuple

import numpy as np
import torch

from ssd.model.batch import Batch

from .scheduler import Plan
from .tree import Tree, words


class Verification(NamedTuple):
    """What the verify operators take beside logits and sampling arguments, for the n sequences that sample."""

    row_offsets: torch.Tensor  # int32 [n + 1]: rows of the logits
    tokens: torch.Tensor  # int32 [n, N]
    parents: torch.Tensor  # int8 [n, N]


class BatchBuffers:
    """Memory for passes of at most max_rows rows.

    A pass holds at most max_batch sequences of max_pages pages of page_size tokens, with speculations of at most
    `nodes` tokens.
    """

    def __init__(self, max_batch: int, max_rows: int, max_pages: int, page_size: int, nodes: int = 0):
        def buffer(dtype, *shape):
            tensor = torch.zeros(shape, dtype=dtype)
            return tensor, tensor.numpy()

        self._ids, self._np_ids = buffer(torch.int64, max_rows)
        self._positions, self._np_positions = buffer(torch.int32, max_rows)
        self._slots, self._np_slots = buffer(torch.int64, max_rows)
        self._mask, self._np_mask = buffer(torch.int64, max_rows if nodes else 0, 1)
        self._row_offsets, self._np_row_offsets = buffer(torch.int32, max_batch + 1)
        self._prefix_lens, self._np_prefix_lens = buffer(torch.int32, max_batch)
        self._page_table, self._np_page_table = buffer(torch.int32, max_batch, max_pages)
        self._logit_rows, self._np_logit_rows = buffer(torch.int64, max_rows)
        self._logit_offsets, self._np_logit_offsets = buffer(torch.int32, max_batch + 1)
        self._tokens, self._np_tokens = buffer(torch.int32, max_batch, nodes)
        self._parents, self._np_parents = buffer(torch.int8, max_batch, nodes)
        self._temperature, self._np_temperature = buffer(torch.float32, max_batch)
        self._top_k, self._np_top_k = buffer(torch.int32, max_batch)
        self._top_p, self._np_top_p = buffer(torch.float32, max_batch)
        self._min_p, self._np_min_p = buffer(torch.float32, max_batch)
        self._seeds, self._np_seeds = buffer(torch.int64, max_batch)
        self._sampled_at, self._np_sampled_at = buffer(torch.int64, max_batch)
        self._indices = np.arange(max_pages * page_size, dtype=np.int32)
        self._shape, self._views = None, None

    def fill(self, plan: Plan, trees: list[Tree | None] | None = None) -> tuple[Batch, tuple, Verification]:
        """Fill the tensors of a pass. Returns views, valid until the next fill:

        the batch; the arguments of `sample` behind the logits, which are temperature, top_k, top_p, min_p, seeds and
        positions [n] of the sequences that sample, in the order of the plan, and False, for no logprobs; and what a
        verification takes. trees: one or None for each sequence of the plan.
        """
        row, logit, sampling, branching = 0, 0, 0, False
        for i, work in enumerate(plan):
            sequence, count = work
            begin, end = sequence.num_cached, sequence.num_cached + count
            tree = trees[i] if trees else None
            nodes = len(tree) if tree else 0
            self._np_ids[row : row + count] = sequence.tokens[begin:end]
            self._np_positions[row : row + count] = self._indices[begin:end]
            self._np_slots[row : row + count + nodes] = sequence.slots[begin : end + nodes]
            self._np_prefix_lens[i] = begin
            self._np_page_table[i, : len(sequence.pages)] = sequence.page_row
            row += count
            if work.samples:
                params = sequence.params
                self._np_logit_rows[logit : logit + 1 + nodes] = range(row - 1, row + nodes)
                self._np_temperature[sampling] = params.temperature
                self._np_top_k[sampling] = params.top_k
                self._np_top_p[sampling] = params.top_p
                self._np_min_p[sampling] = params.min_p
                self._np_seeds[sampling] = sequence.seed
                self._np_sampled_at[sampling] = end
                if nodes:
                    self._np_ids[row : row + nodes] = self._np_tokens[sampling, :nodes] = tree.tokens
                    self._np_positions[row : row + nodes] = tree.depth
                    self._np_positions[row : row + nodes] += end - 1
                    self._np_parents[sampling, :nodes] = tree.parents
                    branching |= not tree.is_chain
                logit += 1 + nodes
                sampling += 1
                self._np_logit_offsets[sampling] = logit
            row += nodes
            self._np_row_offsets[i + 1] = row
        if branching:
            self._fill_mask(plan, trees)
        shape = (row, len(plan), logit, sampling, branching)
        if shape != self._shape:  # decoding goes on with the same views
            self._shape, self._views = shape, self._view(*shape)
        return self._views

    def _fill_mask(self, plan, trees) -> None:
        """Fill the mask of a pass that holds no prompt: each sequence has one row and its nodes."""
        row = 0
        for (_, count), tree in zip(plan, trees, strict=True):
            if count != 1:
                raise ValueError(f"trees: got a branching one beside {count} rows of a prompt, wanted chains there")
            bits = [1, *(tree.bits if tree else ())]
            self._np_mask[row : row + len(bits)] = words(bits, 1)
            row += len(bits)

    def _view(self, rows: int, sequences: int, logits: int, sampling: int, branching: bool):
        batch = Batch(
            ids=self._ids[:rows],
            positions=self._positions[:rows],
            slots=self._slots[:rows],
            row_offsets=self._row_offsets[: sequences + 1],
            prefix_lens=self._prefix_lens[:sequences],
            page_table=self._page_table[:sequences],
            logit_rows=self._logit_rows[:logits],
            mask=self._mask[:rows] if branching else None,
        )
        arguments = (self._temperature, self._top_k, self._top_p, self._min_p, self._seeds, self._sampled_at)
        offsets = self._logit_offsets[: sampling + 1]
        verification = Verification(offsets, self._tokens[:sampling], self._parents[:sampling])
        return batch, (*(t[:sampling] for t in arguments), False), verification
