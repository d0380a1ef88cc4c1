"""Which rows of which requests the next pass computes, and in which pages."""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ssd.model.kv_cache import BlockAllocator

from .sequence import Sequence


class Work(NamedTuple):
    """The next `count` rows of a sequence, from index num_cached on."""

    sequence: Sequence
    count: int

    @property
    def samples(self) -> bool:
        """Whether the last row is the newest known token, so that its logits give the next token."""
        return self.sequence.num_cached + self.count == self.sequence.num_tokens


class Plan(list[Work]):
    """The work of one pass, sequence by sequence. prefill_rows: rows of prompts among it."""

    def __init__(self, works: Iterable[Work] = ()):
        super().__init__(works)
        self.prefill_rows = sum(work.count for work in self if not work.sequence.decoding)

    @property
    def decoding(self) -> bool:
        """Whether every sequence decodes: the pass holds no prompt."""
        return not self.prefill_rows


class Scheduler:
    """Continuous batching: requests enter in order of arrival, as room in the batch and pages allow, and leave at any
    pass.

    A pass holds one row for each decoding request and up to prefill_chunk rows of prompts, the earliest request first.
    Requests take pages as tokens come, with room for `nodes` speculated tokens. Where no page is left, the latest
    arrival gives up its pages, goes to the head of the queue with every token that it has, and computes their KV again
    when it is admitted.

    prefix_caching: a page whose block is full, confirmed and computed is named by its content (Sequence.digest), and
    every request with the same tokens from the beginning on shares it. A request leaves its next block to another one
    that computes the same block in this pass. preempted: the requests that lost their pages in the newest plan;
    reused: the prompt tokens that the newest plan found in the cache.
    """

    def __init__(
        self, allocator: BlockAllocator, page_size: int, max_batch: int, prefill_chunk: int, nodes: int = 0,
        prefix_caching: bool = True,
    ):  # fmt: skip
        self.allocator, self.page_size, self.nodes = allocator, page_size, nodes
        self.max_batch, self.prefill_chunk, self.prefix_caching = max_batch, prefill_chunk, prefix_caching
        self.waiting: deque[Sequence] = deque()  # both in order of arrival, all that run before all that wait
        self.running: list[Sequence] = []
        self.preempted: list[Sequence] = []
        self.reused = 0

    def add(self, sequence: Sequence) -> None:
        """Queue a request. Raises ValueError where even an empty cache could not hold it."""
        size = self.allocator.num_pages * self.page_size - self.nodes
        if len(sequence.tokens) > size:
            raise ValueError(
                f"max_tokens: prompt and answer need {len(sequence.tokens)} tokens of KV cache, wanted at most {size}"
            )
        self.waiting.append(sequence)

    def plan(self) -> Plan:
        """The rows of the next pass, empty when there is nothing to do. Takes and gives pages; no token changes."""
        self.preempted, self.reused = [], 0
        for sequence in list(self.running):
            self._grow(sequence)
        if not self.preempted:
            self._admit()
        plan, budget, coming = [], self.prefill_chunk, set()
        for sequence in self.running:
            self._take(sequence, self._found(sequence))
            count = sequence.num_tokens - sequence.num_cached
            if not sequence.decoding:
                if coming.intersection(self._wanted(sequence, 1)):
                    continue
                count = min(count, budget)
                budget -= count
                coming.update(self._filled(sequence, sequence.num_cached, sequence.num_cached + count))
            if count:
                plan.append(Work(sequence, count))
        return Plan(plan)

    def keep(self, sequence: Sequence, since: int) -> None:
        """After a pass: let the blocks that it filled be found, where num_cached was `since` before. Only confirmed
        tokens count: num_cached may be beyond num_tokens where a request ended inside an accepted run."""
        end = min(sequence.num_cached, sequence.num_tokens)
        for block, digest in enumerate(self._filled(sequence, since, end), since // self.page_size):
            self.allocator.name(sequence.pages[block], digest)

    def remove(self, sequence: Sequence) -> None:
        """Take a request out, finished or not, and give its pages back. One that is out already is no error."""
        if sequence in self.running:
            self.running.remove(sequence)
            self.allocator.free(sequence.drop_pages())
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def _admit(self) -> None:
        """Admit requests in order of arrival: a small one behind a large one waits with it. One page is left to each
        request that runs, or the newcomer would soon lose its pages again."""
        while self.waiting and len(self.running) < self.max_batch:
            sequence = self.waiting[0]
            found = self._found(sequence)
            need = self._missing(sequence) - sum(self.allocator.refs(page) > 0 for page in found)
            if need + len(self.running) > self.allocator.num_free:
                return
            self.running.append(self.waiting.popleft())
            self._take(sequence, found)
            self._grow(sequence)

    def _grow(self, sequence: Sequence) -> None:
        """Take pages for the known tokens and what may be speculated behind them. Where none is left, they come from
        the latest arrivals, of which the sequence itself may be one."""
        while sequence in self.running and self._missing(sequence) > self.allocator.num_free:
            latest = self.running.pop()
            self.allocator.free(latest.drop_pages())
            latest.preempted = True
            self.waiting.appendleft(latest)
            self.preempted.append(latest)
        if sequence in self.running and (missing := self._missing(sequence)) > 0:
            sequence.take_pages(sequence.pages + self.allocator.allocate(missing), self.page_size)

    def _missing(self, sequence: Sequence) -> int:
        return -(-(sequence.num_tokens + self.nodes) // self.page_size) - len(sequence.pages)

    # ---- what others have computed ----

    def _filled(self, sequence: Sequence, begin: int, end: int) -> Iterator[bytes]:
        """The digests of the blocks that tokens begin to end - 1 fill."""
        if self.prefix_caching:
            for block in range(begin // self.page_size, end // self.page_size):
                yield sequence.digest(block, self.page_size)

    def _wanted(self, sequence: Sequence, blocks: int) -> Iterator[bytes]:
        """The digests of so many blocks to be computed next. The last token is always computed, for its logits."""
        begin = sequence.num_cached
        end = min(begin + blocks * self.page_size, sequence.num_tokens - 1)
        return self._filled(sequence, begin, end if begin % self.page_size == 0 else begin)

    def _found(self, sequence: Sequence) -> list[int]:
        """The pages that hold what comes next."""
        pages = []
        for digest in self._wanted(sequence, len(sequence.tokens)):
            page = self.allocator.find(digest)
            if page is None:
                break
            pages.append(page)
        return pages

    def _take(self, sequence: Sequence, found: list[int]) -> None:
        """Share found pages, in place of those that the sequence has for the same tokens."""
        if not found:
            return
        at, n = sequence.num_cached // self.page_size, len(found)
        self.allocator.share(found)
        self.allocator.free(sequence.pages[at : at + n])
        sequence.take_pages(sequence.pages[:at] + found + sequence.pages[at + n :], self.page_size)
        sequence.num_cached += n * self.page_size
        if not sequence.preempted:
            self.reused += n * self.page_size
