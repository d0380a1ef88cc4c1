import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ssd.model.kv_cache import BlockAllocator, KVCache

PAGES = 12


class AllocatorMachine(RuleBasedStateMachine):
    """The allocator against a plain list of who owns what."""

    def __init__(self):
        super().__init__()
        self.allocator = BlockAllocator(PAGES)
        self.owners = []  # one list of pages per owner

    def held(self):
        return {page for pages in self.owners for page in pages}

    @rule(count=st.integers(0, PAGES + 1))
    def allocate(self, count):
        if count > PAGES - len(self.held()):
            with pytest.raises(MemoryError):
                self.allocator.allocate(count)
        else:
            pages = self.allocator.allocate(count)
            assert len(set(pages)) == count and not self.held() & set(pages)
            self.owners.append(pages)

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def share(self, data):
        pages = list(data.draw(st.sampled_from(self.owners)))
        self.allocator.share(pages)
        self.owners.append(pages)

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def free(self, data):
        self.allocator.free(self.owners.pop(data.draw(st.integers(0, len(self.owners) - 1))))

    @rule(data=st.data())
    def free_what_is_not_held(self, data):
        foreign = data.draw(st.sampled_from(sorted(set(range(-1, PAGES + 1)) - self.held())))
        with pytest.raises(ValueError, match="page"):
            self.allocator.free([*sorted(self.held()), foreign])
        with pytest.raises(ValueError, match="page"):
            self.allocator.share([*sorted(self.held()), foreign])

    @invariant()
    def counts_agree(self):
        assert self.allocator.num_free == PAGES - len(self.held())
        for page in range(PAGES):
            assert self.allocator.refs(page) == sum(pages.count(page) for pages in self.owners)


TestAllocator = AllocatorMachine.TestCase
TestAllocator.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_double_free_in_one_call_changes_nothing():
    allocator = BlockAllocator(4)
    pages = allocator.allocate(2)
    with pytest.raises(ValueError, match="freed 2 times"):
        allocator.free([pages[0], pages[1], pages[0]])
    assert allocator.num_free == 2
    allocator.free(pages)
    assert allocator.num_free == 4


def test_page_freed_last_is_used_first():
    allocator = BlockAllocator(8)
    first = allocator.allocate(3)
    allocator.free(first)
    assert allocator.allocate(3) == first


def test_cache_shape_and_memory():
    cache = KVCache(2, 5, 4, 3, 8, torch.bfloat16)
    assert cache.k.shape == cache.v.shape == (2, 5, 4, 3, 8)
    assert cache.nbytes == 2 * 2 * 5 * 4 * 3 * 8 * 2
    with pytest.raises(ValueError, match="num_pages: got 0"):
        KVCache(2, 0, 4, 3, 8)
    with pytest.raises(MemoryError, match="KV cache of 1099511627776 tokens"):
        KVCache(32, 2**36, 16, 8, 128)
