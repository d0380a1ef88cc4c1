import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ssd.model.kv_cache import BlockAllocator
from ssd.runtime import SamplingParams
from ssd.runtime.rows import RowBuffer
from ssd.runtime.scheduler import Scheduler
from ssd.runtime.sequence import Sequence
from ssd.runtime.text import TextStream

PAGES, PAGE_SIZE, BATCH, CHUNK = 10, 4, 3, 6


class Silent:
    def add(self, token):
        return "."

    def finish(self):
        return ""


def sequence(prompt_len, max_tokens, eos=False):
    params = SamplingParams(max_tokens=max_tokens)
    return Sequence.start(list(range(100, 100 + prompt_len)), max_tokens, params, 1, TextStream(Silent()))


class SchedulerMachine(RuleBasedStateMachine):
    """Arrivals, passes and cancellations in any order."""

    def __init__(self):
        super().__init__()
        self.allocator = BlockAllocator(PAGES)
        self.scheduler = Scheduler(self.allocator, PAGE_SIZE, BATCH, CHUNK)
        self.rows = RowBuffer(BATCH, BATCH + CHUNK, PAGES, PAGE_SIZE)
        self.alive, self.entered = [], []  # in order of arrival

    @rule(prompt_len=st.integers(1, 20), max_tokens=st.integers(1, 20))
    def add(self, prompt_len, max_tokens):
        self.alive.append(sequence(prompt_len, max_tokens))
        self.scheduler.add(self.alive[-1])

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def cancel(self, data):
        gone = data.draw(st.sampled_from(self.alive))
        self.alive.remove(gone)
        self.scheduler.remove(gone)
        self.scheduler.remove(gone)  # twice is once

    @rule()
    def step(self):
        decoding = [s for s in self.scheduler.running if s.decoding]
        plan = self.scheduler.plan()
        assert bool(plan) == bool(self.alive)  # never stuck
        work = {w.sequence: w.count for w in plan}
        assert all(work.get(s) == 1 for s in decoding)  # decoding never waits for prompts
        prompts = [s for s in self.scheduler.running if s not in decoding]
        assert sum(work.get(s, 0) for s in prompts) == min(CHUNK, sum(s.num_tokens - s.num_cached for s in prompts))
        assert [s for s in self.alive if s in self.scheduler.running] == self.alive[: len(self.scheduler.running)]
        self.check_rows(plan)
        for s, count in plan:
            samples = s.num_cached + count == s.num_tokens
            s.num_cached += count
            if samples:
                s.append(7, 0.0, frozenset())
                if s.finish_reason:
                    self.alive.remove(s)
                    self.scheduler.remove(s)

    def check_rows(self, plan):
        batch, (*arguments, logprobs), _ = self.rows.fill(plan)
        row = 0
        for b, (s, count) in enumerate(plan):
            assert batch.row_offsets[b : b + 2].tolist() == [row, row + count]
            index = np.arange(s.num_cached, s.num_cached + count)
            rows = slice(row, row + count)
            assert batch.ids[rows].tolist() == s.tokens[index].tolist()
            assert batch.positions[rows].tolist() == index.tolist() and batch.prefix_lens[b] == s.num_cached
            assert batch.page_table[b, : len(s.pages)].tolist() == s.pages
            page, offset = np.array(s.pages)[index // PAGE_SIZE], index % PAGE_SIZE
            assert batch.slots[rows].tolist() == (page * PAGE_SIZE + offset).tolist()
            row += count
        samples = [i for i, w in enumerate(plan) if w.samples]
        assert batch.logit_rows.tolist() == [int(batch.row_offsets[i + 1]) - 1 for i in samples]
        assert arguments[-1].tolist() == [plan[i].sequence.num_tokens for i in samples]
        assert len(batch.ids) == row and not logprobs

    @invariant()
    def pages_are_held_by_running_requests_only(self):
        running = self.scheduler.running
        held = [page for s in running for page in s.pages]
        assert len(set(held)) == len(held) == PAGES - self.allocator.num_free
        assert len(running) <= BATCH
        assert all(len(s.pages) * PAGE_SIZE >= len(s.tokens) for s in running)  # all that it may ever need


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_decode_rows_and_a_prompt_chunk_share_a_pass():
    scheduler = Scheduler(BlockAllocator(PAGES), PAGE_SIZE, BATCH, CHUNK)
    first, second = sequence(2, 8), sequence(9, 3)
    scheduler.add(first)
    for s, count in scheduler.plan():
        s.num_cached += count
        s.append(7, 0.0, frozenset())
    scheduler.add(second)
    assert [(w.sequence, w.count) for w in scheduler.plan()] == [(first, 1), (second, CHUNK)]


def test_a_request_larger_than_the_cache_is_refused():
    scheduler = Scheduler(BlockAllocator(PAGES), PAGE_SIZE, BATCH, CHUNK)
    with pytest.raises(ValueError, match="need 41 tokens of KV cache, wanted at most 40"):
        scheduler.add(sequence(21, 20))


def test_arrival_order_holds_for_a_small_request_behind_a_large_one():
    scheduler = Scheduler(BlockAllocator(PAGES), PAGE_SIZE, BATCH, CHUNK)
    large, small = sequence(20, 20), sequence(1, 1)
    scheduler.add(sequence(1, 1))
    scheduler.plan()
    scheduler.add(large)
    scheduler.add(small)
    scheduler.plan()
    assert list(scheduler.waiting) == [large, small]
