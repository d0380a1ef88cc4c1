"""The loop: plan, forward, sample, update. It knows tokens and pages; prompts and text are of llm.py."""

from itertools import repeat
from time import perf_counter

import torch

from ssd.model.kv_cache import BlockAllocator

from .metrics import Metrics
from .rows import RowBuffer
from .scheduler import Scheduler, Work
from .sequence import Sequence


class Engine:
    """Serves sequences on one model, in the calling thread.

    model: forward(Batch, KVCache) -> float32 [n, vocabulary] and new_kv_cache(pages, page_size); sample: the operator
    of that name; eos_ids end a sequence. A pass changes nothing before its tokens are known, so one that raises can
    be repeated, or its requests cancelled.
    """

    def __init__(
        self, model, sample, eos_ids, *, max_batch: int, max_model_len: int, kv_tokens: int, prefill_chunk: int,
        page_size: int = 16,
    ):  # fmt: skip
        pages = -(-kv_tokens // page_size)
        self.model, self.sample, self.eos_ids = model, sample, frozenset(eos_ids)
        self.kv = model.new_kv_cache(pages, page_size)
        self.allocator = BlockAllocator(pages)
        self.scheduler = Scheduler(self.allocator, page_size, max_batch, prefill_chunk)
        self._rows = RowBuffer(max_batch, max_batch + prefill_chunk, -(-max_model_len // page_size), page_size)
        self.metrics = Metrics()

    def add(self, sequence: Sequence) -> None:
        self.scheduler.add(sequence)

    def cancel(self, sequence: Sequence) -> None:
        """Forget a request, finished or not; its pages are free afterwards."""
        self.scheduler.remove(sequence)

    def step(self) -> list[Sequence]:
        """One pass. Returns the sequences that got a token, those that it finished included."""
        begin = perf_counter()
        plan = self.scheduler.plan()
        if not plan:
            return []
        prefill_rows = sum(work.count for work in plan if not work.sequence.decoding)
        batch, sampling = self._rows.fill(plan)
        tokens = logprobs = ()
        filled = perf_counter()
        with torch.inference_mode():
            logits = self.model.forward(batch, self.kv)
            forwarded = perf_counter()
            if len(batch.logit_rows):
                tokens, logprobs = (t.tolist() for t in self.sample(logits, *sampling))
        sampled = perf_counter()
        got = self._update(plan, tokens, logprobs)
        end = perf_counter()
        self.metrics.add(prefill_rows, len(got), end - begin, forwarded - filled, sampled - forwarded)
        return got

    def _update(self, plan: list[Work], tokens, logprobs) -> list[Sequence]:
        got = [work.sequence for work in plan if work.samples]
        for work in plan:
            work.sequence.num_cached += work.count
        for sequence, token, logprob in zip(got, tokens, logprobs or repeat(None), strict=False):
            sequence.append(token, logprob, self.eos_ids)
            if sequence.finish_reason:
                self.scheduler.remove(sequence)
        return got
