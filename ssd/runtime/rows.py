"""The tensors of a pass, filled in place: a step costs a few numpy writes a sequence and no allocation."""

import numpy as np
import torch

from ssd.model.batch import Batch

from .scheduler import Work


class RowBuffer:
    """Memory for passes of at most max_rows rows of max_batch sequences with max_pages pages of page_size each."""

    def __init__(self, max_batch: int, max_rows: int, max_pages: int, page_size: int):
        def buffer(dtype, *shape):
            tensor = torch.zeros(shape, dtype=dtype)
            return tensor, tensor.numpy()

        self._ids, self._np_ids = buffer(torch.int64, max_rows)
        self._positions, self._np_positions = buffer(torch.int32, max_rows)
        self._slots, self._np_slots = buffer(torch.int64, max_rows)
        self._row_offsets, self._np_row_offsets = buffer(torch.int32, max_batch + 1)
        self._prefix_lens, self._np_prefix_lens = buffer(torch.int32, max_batch)
        self._page_table, self._np_page_table = buffer(torch.int32, max_batch, max_pages)
        self._logit_rows, self._np_logit_rows = buffer(torch.int64, max_batch)
        self._temperature, self._np_temperature = buffer(torch.float32, max_batch)
        self._top_k, self._np_top_k = buffer(torch.int32, max_batch)
        self._top_p, self._np_top_p = buffer(torch.float32, max_batch)
        self._min_p, self._np_min_p = buffer(torch.float32, max_batch)
        self._seeds, self._np_seeds = buffer(torch.int64, max_batch)
        self._sampled_at, self._np_sampled_at = buffer(torch.int64, max_batch)
        self._indices = np.arange(max_pages * page_size, dtype=np.int32)
        self._shape, self._views = None, None

    def fill(self, plan: list[Work]) -> tuple[Batch, tuple]:
        """The batch, and the arguments of `sample` after the logits: temperature, top_k, top_p, min_p, seeds and
        positions [n], one for each sequence that samples, in the order of the plan, and whether one wants logprobs.

        Both are views of this buffer: valid until the next fill.
        """
        row, sampling, logprobs = 0, 0, False
        for i, work in enumerate(plan):
            sequence, count = work
            begin, end = sequence.num_cached, sequence.num_cached + count
            rows = slice(row, row + count)
            self._np_ids[rows] = sequence.tokens[begin:end]
            self._np_positions[rows] = self._indices[begin:end]
            self._np_slots[rows] = sequence.slots[begin:end]
            self._np_prefix_lens[i] = begin
            self._np_page_table[i, : len(sequence.pages)] = sequence.page_row
            row += count
            self._np_row_offsets[i + 1] = row
            if work.samples:
                params = sequence.params
                self._np_logit_rows[sampling] = row - 1
                self._np_temperature[sampling] = params.temperature
                self._np_top_k[sampling] = params.top_k
                self._np_top_p[sampling] = params.top_p
                self._np_min_p[sampling] = params.min_p
                self._np_seeds[sampling] = sequence.seed
                self._np_sampled_at[sampling] = end
                logprobs |= params.logprobs
                sampling += 1
        shape = (row, len(plan), sampling, logprobs)
        if shape != self._shape:  # decoding goes on with the same views
            self._shape, self._views = shape, self._view(*shape)
        return self._views

    def _view(self, rows: int, sequences: int, sampling: int, logprobs: bool):
        batch = Batch(
            ids=self._ids[:rows],
            positions=self._positions[:rows],
            slots=self._slots[:rows],
            row_offsets=self._row_offsets[: sequences + 1],
            prefix_lens=self._prefix_lens[:sequences],
            page_table=self._page_table[:sequences],
            logit_rows=self._logit_rows[:sampling],
            mask=None,
        )
        arguments = (self._temperature, self._top_k, self._top_p, self._min_p, self._seeds, self._sampled_at)
        return batch, (*(t[:sampling] for t in arguments), logprobs)
