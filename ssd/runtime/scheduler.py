"""Which rows of which requests the next pass computes."""

from collections import deque
from typing import NamedTuple

from ssd.model.kv_cache import BlockAllocator

from .sequence import Sequence


class Work(NamedTuple):
    """The next count rows of a sequence, from index num_cached on."""

    sequence: Sequence
    count: int

    @property
    def samples(self) -> bool:
        """Whether the last row is the newest known token, so that its logits give the next one."""
        return self.sequence.num_cached + self.count == self.sequence.num_tokens


class Scheduler:
    """Continuous batching: requests enter in order of arrival as places and pages allow, and leave at any pass.

    Admission reserves the pages of prompt + max_tokens, and spare_pages for speculation, so nothing runs out in the
    middle. A pass holds one row for each decoding request and up to prefill_chunk rows of prompts, the earliest
    request first.
    """

    def __init__(
        self, allocator: BlockAllocator, page_size: int, max_batch: int, prefill_chunk: int, spare_pages: int = 0
    ):
        self.allocator, self.page_size, self.spare_pages = allocator, page_size, spare_pages
        self.max_batch, self.prefill_chunk = max_batch, prefill_chunk
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    def add(self, sequence: Sequence) -> None:
        """Queue a request. Raises ValueError where even an empty cache could not hold it."""
        if self._pages(sequence) > self.allocator.num_pages:
            raise ValueError(
                f"max_tokens: prompt and answer need {len(sequence.tokens)} tokens of KV cache, "
                f"wanted at most {(self.allocator.num_pages - self.spare_pages) * self.page_size}"
            )
        self.waiting.append(sequence)

    def plan(self) -> list[Work]:
        """The rows of the next pass, empty when there is nothing to do. Admits requests; changes no sequence else."""
        self._admit()
        plan, budget = [], self.prefill_chunk
        for sequence in self.running:
            count = sequence.num_tokens - sequence.num_cached
            if not sequence.decoding:
                count = min(count, budget)
                budget -= count
            if count:
                plan.append(Work(sequence, count))
        return plan

    def remove(self, sequence: Sequence) -> None:
        """Take a request out, finished or not, and give its pages back. One that is out already stays out."""
        if sequence in self.running:
            self.running.remove(sequence)
            self.allocator.free(sequence.pages)
            sequence.pages = []
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self.max_batch:
            need = self._pages(self.waiting[0])
            if need > self.allocator.num_free:
                return  # in order of arrival: a small request behind a large one waits with it
            sequence = self.waiting.popleft()
            sequence.take_pages(self.allocator.allocate(need), self.page_size)
            self.running.append(sequence)

    def _pages(self, sequence: Sequence) -> int:
        return -(-len(sequence.tokens) // self.page_size) + self.spare_pages
