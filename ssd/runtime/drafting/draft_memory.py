"""The memory of a draft: one KV cache, made once, whose pages all runners of the draft share."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import takewhile

import numpy as np

from ssd.model.draft import Draft
from ssd.model.kv_cache import BlockAllocator

from ..devices.placement import CPU, Placement

PAGE_SIZE = 16


def pages_of(tokens: int) -> int:
    """The pages of so many tokens."""
    return -(-tokens // PAGE_SIZE)


class DraftMemory:
    """The KV cache of a draft on a lane's stream, and its pages.

    Both modes of `auto` share one, and so do draft lanes that follow one another: whoever comes later takes the pages
    that are free. A page whose block is full and confirmed is named by its content, and then found by whoever goes on
    with the same sequence; with prefix_caching by every sequence that begins with the same tokens. Any thread may ask
    for pages.
    """

    def __init__(self, draft: Draft, num_pages: int, placement: Placement = CPU, prefix_caching: bool = True):
        self.draft, self.placement, self.prefix_caching = draft, placement, prefix_caching
        with placement.stream():
            self.kv = draft.new_kv_cache(num_pages, PAGE_SIZE)
        self.allocator = BlockAllocator(num_pages)
        self.lock = threading.Lock()
        self.generation = 0  # part of every name: what was named in an earlier one is found no more


class DraftPages:
    """The pages of one runner, by slot.

    table: int32 [slots, most], the pages of a slot; where: int64 [slots, most * PAGE_SIZE], the place in the cache of
    each index of a slot. Both mean nothing where a slot has no page.
    """

    def __init__(self, memory: DraftMemory, slots: int, most: int):
        self.memory = memory
        self.table = np.zeros((slots, most), np.int32)
        self.where = np.zeros((slots, most * PAGE_SIZE), np.int64)
        self.held: list[list[int]] = [[] for _ in range(slots)]
        self.retired = self.busy = False

    def reserve(self, slot: int, length: int) -> bool:
        """Whether a slot has the pages of `length` indices now. Where too few are free it loses all of its own, so that
        others can go on."""
        count = pages_of(length) - len(self.held[slot])
        if count <= 0:
            return True
        with self.memory.lock:
            if self.retired or count > self.memory.allocator.num_free:
                self._drop(slot)
                return False
            self._append(slot, self.memory.allocator.allocate(count))
        return True

    def names_of(self, sequence) -> bytes:
        """What the names of a sequence's blocks begin with."""
        return b"" if self.memory.prefix_caching else id(sequence).to_bytes(8, "little")

    def find(self, slot: int, names: Iterable[bytes]) -> int:
        """Give a slot without pages those of its first blocks, as far as they are known. Returns how many."""
        allocator = self.memory.allocator
        with self.memory.lock:
            if not self.retired:
                found = (allocator.find(self._whole(name)) for name in names)
                pages = list(takewhile(lambda page: page is not None, found))
                allocator.share(pages)
                self._append(slot, pages)
            return len(self.held[slot])

    def name(self, slot: int, block: int, name: bytes) -> None:
        """Let a block of a slot be found, or take the page that others have for it."""
        allocator, held, name = self.memory.allocator, self.held[slot], self._whole(name)
        with self.memory.lock:
            if self.retired:
                return
            allocator.name(held[block], name)
            if (page := allocator.find(name)) not in (held[block], None):
                allocator.share([page])
                allocator.free([held[block]])
                held[block] = page
                self._place(slot, block, [page])

    def drop(self, slot: int) -> None:
        """Give the pages of a slot back."""
        with self.memory.lock:
            self._drop(slot)

    def drop_all(self) -> None:
        for slot in range(len(self.held)):
            self.drop(slot)

    def retire(self) -> None:
        """The runner shall make no pass any more, and nothing that it computed is found. Its pages are free again, but
        not before a pass in progress, perhaps in a thread that hangs, has ended: nobody writes into others' pages."""
        with self.memory.lock:
            self.retired = True
            self.memory.generation += 1
            self._end()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """While a pass uses the pages. Raises RuntimeError where the runner is retired."""
        with self.memory.lock:
            if self.retired:
                raise RuntimeError("a draft lane that was given up goes on no more")
            self.busy = True
        try:
            yield
        finally:
            with self.memory.lock:
                self.busy = False
                self._end()

    def forget_thread(self) -> None:
        """In a forked process: the runner's thread is the parent's, and what it locked stays locked."""
        self.memory.lock, self.busy = threading.Lock(), False

    # ---- with the lock ----

    def _end(self) -> None:
        if self.retired:
            for slot in range(len(self.held)):
                self._drop(slot)

    def _drop(self, slot: int) -> None:
        if not (self.retired and self.busy):
            self.memory.allocator.free(self.held[slot])
            self.held[slot] = []

    def _append(self, slot: int, pages: list[int]) -> None:
        self._place(slot, len(self.held[slot]), pages)
        self.held[slot] += pages

    def _place(self, slot: int, first: int, pages: list[int]) -> None:
        last = first + len(pages)
        self.table[slot, first:last] = pages
        places = np.add.outer(np.array(pages, np.int64) * PAGE_SIZE, np.arange(PAGE_SIZE))
        self.where[slot, first * PAGE_SIZE : last * PAGE_SIZE] = places.ravel()

    def _whole(self, name: bytes) -> bytes:
        return self.memory.generation.to_bytes(8, "little") + name
