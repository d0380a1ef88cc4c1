import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ssd.model.kv_cache import BlockAllocator, KVCache

PAGES = 12


class AllocatorMachine(RuleBasedStateMachine):
    """A model of the allocator, with a plain list of who owns what."""

    def __init__(self):
        super().__init__()
        self.allocator = BlockAllocator(PAGES)
        self.owners = []  # one list of pages for each owner
        self.names, self.kept = {}, []  # page to name; free pages that have one, the first freed first

    def held(self):
        return {page for pages in self.owners for page in pages}

    def shareable(self):
        return self.held() | set(self.kept)

    @rule(count=st.integers(0, PAGES + 1))
    def allocate(self, count):
        if count > PAGES - len(self.held()):
            with pytest.raises(MemoryError):
                self.allocator.allocate(count)
        else:
            pages = self.allocator.allocate(count)
            assert len(set(pages)) == count and not self.held() & set(pages)
            forgotten = max(count - (PAGES - len(self.held()) - len(self.kept)), 0)
            assert set(pages) & set(self.kept) == set(self.kept[:forgotten])  # no more than needed, the oldest first
            for page in self.kept[:forgotten]:
                del self.names[page]
            del self.kept[:forgotten]
            self.owners.append(pages)

    @precondition(lambda self: self.held())
    @rule(data=st.data(), name=st.binary(min_size=1, max_size=1))
    def name(self, data, name):
        page = data.draw(st.sampled_from(sorted(self.held())))
        self.allocator.name(page, name)
        if page not in self.names and name not in self.names.values():
            self.names[page] = name

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def share(self, data):
        pages = list(data.draw(st.sampled_from(self.owners)))
        self.allocator.share(pages)
        self.owners.append(pages)

    @precondition(lambda self: self.names)
    @rule(data=st.data())
    def share_by_name(self, data):
        page, name = data.draw(st.sampled_from(sorted(self.names.items())))
        assert self.allocator.find(name) == page
        self.allocator.share([page])
        self.owners.append([page])
        self.kept = [p for p in self.kept if p != page]

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def free(self, data):
        pages = self.owners.pop(data.draw(st.integers(0, len(self.owners) - 1)))
        self.allocator.free(pages)
        self.kept += [p for p in reversed(pages) if p in self.names and p not in self.held()]

    @rule(data=st.data())
    def free_what_is_not_held(self, data):
        foreign = data.draw(st.sampled_from(sorted(set(range(-1, PAGES + 1)) - self.held())))
        with pytest.raises(ValueError, match="page"):
            self.allocator.free([*sorted(self.held()), foreign])
        if foreign not in self.kept:
            with pytest.raises(ValueError, match="page"):
                self.allocator.share([*sorted(self.shareable()), foreign])
        if foreign not in self.names:
            with pytest.raises(ValueError, match="page"):
                self.allocator.name(foreign, b"name")

    @invariant()
    def counts_agree(self):
        assert self.allocator.num_free == PAGES - len(self.held())
        for page in range(PAGES):
            assert self.allocator.refs(page) == sum(pages.count(page) for pages in self.owners)
        assert all(self.allocator.find(name) == page for page, name in self.names.items())
        found = [name for i in range(256) if self.allocator.find(name := bytes([i])) is not None]
        assert sorted(found) == sorted(self.names.values())


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


def test_a_chain_loses_its_end_first():
    allocator = BlockAllocator(4)
    chain = allocator.allocate(3)
    for page, name in zip(chain, (b"a", b"b", b"c"), strict=True):
        allocator.name(page, name)
    allocator.free(chain)
    allocator.allocate(2)  # the page that had no owner, and the end of the chain
    assert [allocator.find(name) for name in (b"a", b"b", b"c")] == [*chain[:2], None]


def test_cache_shape_and_memory():
    cache = KVCache(2, 5, 4, 3, 8, torch.bfloat16)
    assert cache.k.shape == cache.v.shape == (2, 5, 4, 3, 8)
    assert cache.nbytes == 2 * 2 * 5 * 4 * 3 * 8 * 2
    with pytest.raises(ValueError, match="num_pages: got 0"):
        KVCache(2, 0, 4, 3, 8)
    with pytest.raises(MemoryError, match="KV cache of 1099511627776 tokens"):
        KVCache(32, 2**36, 16, 8, 128)
