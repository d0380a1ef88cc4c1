"""The memory of a draft: one KV cache, made once, whose pages all runners of the draft share."""

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from ssd.model.draft import Draft
from ssd.model.kv_cache import BlockAllocator

from ..devices.placement import CPU, Placement

PAGE_SIZE = 16


def pages_of(tokens: int) -> int:
    """The pages of so many tokens."""
    return -(-tokens // PAGE_SIZE)


class DraftMemory:
    """The KV cache of a draft on a lane's stream, and the owners of its pages.

    Both modes of `auto` share one, and so do draft lanes that follow one another: whoever comes later takes the pages
    that are free. Any thread may ask for pages.
    """

    def __init__(self, draft: Draft, num_pages: int, placement: Placement = CPU):
        self.placement = placement
        with placement.stream():
            self.kv = draft.new_kv_cache(num_pages, PAGE_SIZE)
        self.allocator = BlockAllocator(num_pages)
        self.lock = threading.Lock()
        self.owners: weakref.WeakSet[DraftPages] = weakref.WeakSet()


class DraftPages:
    """The pages of one runner, by slot.

    table: int32 [slots, most], the pages of a slot; where: int64 [slots, most * PAGE_SIZE], the place in the cache of
    each index of a slot. Both hold 0 where a slot has no page.
    """

    def __init__(self, memory: DraftMemory, slots: int, most: int):
        self.memory = memory
        self.table = np.zeros((slots, most), np.int32)
        self.where = np.zeros((slots, most * PAGE_SIZE), np.int64)
        self.held: list[list[int]] = [[] for _ in range(slots)]
        self.resting = self.retired = self.busy = False
        memory.owners.add(self)

    def reserve(self, slot: int, length: int) -> bool:
        """Whether a slot has the pages of `length` indices now. Where there are too few, it loses those that it had:
        so others can go on."""
        memory, held = self.memory, self.held[slot]
        first, last = len(held), pages_of(length)
        if first >= last:
            return True
        with memory.lock:
            if self.retired:
                return False
            if last - first > memory.allocator.num_free:
                for owner in list(memory.owners):
                    if owner.resting and not owner.busy:
                        owner._drop_all()
            if last - first > memory.allocator.num_free:
                self._drop(slot)
                return False
            new = memory.allocator.allocate(last - first)
            held += new
        self.table[slot, first:last] = new
        places = np.add.outer(np.multiply(new, PAGE_SIZE), range(PAGE_SIZE))
        self.where[slot, first * PAGE_SIZE : last * PAGE_SIZE] = places.ravel()
        return True

    def drop(self, slot: int) -> None:
        """Give the pages of a slot back."""
        with self.memory.lock:
            if not self.retired:
                self._drop(slot)

    def rest(self) -> None:
        """The runner makes no pass until it wakes: whoever lacks pages may take all of its own."""
        self.resting = True

    def wake(self) -> None:
        with self.memory.lock:
            self.resting = False

    def retire(self) -> None:
        """The runner shall make no pass any more. Its pages are free again, but not before a pass in progress, perhaps
        in a thread that hangs, has ended: nobody writes into the pages of others."""
        with self.memory.lock:
            self.retired = True
            if not self.busy:
                self._drop_all()

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
                if self.retired:
                    self._drop_all()

    def forget_thread(self) -> None:
        """In a forked process: the runner's thread is the parent's, and what it locked stays locked."""
        self.memory.lock, self.busy = threading.Lock(), False

    def _drop(self, slot: int) -> None:
        self.memory.allocator.free(self.held[slot])
        self.held[slot].clear()

    def _drop_all(self) -> None:
        for slot in range(len(self.held)):
            self._drop(slot)
