import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ssd.model.kv_cache import BlockAllocator
from ssd.runtime import SamplingParams
from ssd.runtime.engine.batch_buffers import BatchBuffers
from ssd.runtime.engine.scheduler import Scheduler
from ssd.runtime.engine.sequence import Sequence
from ssd.runtime.sampling.text_stream import TextStream

PAGES, PAGE_SIZE, BATCH, CHUNK, NODES = 10, 4, 3, 6, 3


class Silent:
    def add(self, token):
        return "."

    def finish(self):
        return ""


def sequence(prompt, max_tokens):
    """A sequence. prompt: token ids, or how many different ones."""
    prompt = list(range(100, 100 + prompt)) if isinstance(prompt, int) else prompt
    return Sequence.start(prompt, max_tokens, SamplingParams(max_tokens=max_tokens), 1, TextStream(Silent()))


class SchedulerMachine(RuleBasedStateMachine):
    """Arrivals, passes and cancellations in any order, with a memory that holds tokens."""

    def __init__(self):
        super().__init__()
        self.allocator = BlockAllocator(PAGES)
        self.scheduler = Scheduler(self.allocator, PAGE_SIZE, BATCH, CHUNK, NODES)
        self.rows = BatchBuffers(BATCH, BATCH + CHUNK, PAGES, PAGE_SIZE)
        self.memory = np.full(PAGES * PAGE_SIZE, -1)
        self.alive, self.got = [], {}  # in order of arrival; tokens that each has been given

    @rule(shared=st.integers(0, 17), own=st.integers(1, 8), max_tokens=st.integers(1, 15), which=st.integers(0, 1))
    def add(self, shared, own, max_tokens, which):
        prompt = [50 * which + i for i in range(shared)] + [1000 + len(self.got) * 10 + i for i in range(own)]
        s = sequence(prompt[: PAGES * PAGE_SIZE - NODES - max_tokens], max_tokens)
        self.alive.append(s)
        self.got[s] = s.tokens[: s.prompt_len].tolist()
        self.scheduler.add(s)

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def cancel(self, data):
        gone = data.draw(st.sampled_from(self.alive))
        self.alive.remove(gone)
        self.scheduler.remove(gone)
        self.scheduler.remove(gone)  # twice is once

    @rule(accepted=st.lists(st.integers(0, NODES), min_size=BATCH, max_size=BATCH))
    def step(self, accepted):
        decoding = [s for s in self.scheduler.running if s.decoding]
        plan = self.scheduler.plan()
        assert bool(plan) == bool(self.alive)  # never stuck
        work, running = {w.sequence: w.count for w in plan}, self.scheduler.running
        assert running + list(self.scheduler.waiting) == self.alive  # the earliest run
        assert all(work.get(s) == 1 for s in decoding if s in running)  # decoding never waits for prompts
        prompts = [s for s in running if not s.decoding]
        assert sum(work.get(s, 0) for s in prompts) <= CHUNK
        if prompts:
            assert work[prompts[0]] == min(CHUNK, prompts[0].num_tokens - prompts[0].num_cached)
        self.check_rows(plan)
        for (s, count), n in zip(plan, accepted, strict=False):
            samples, since = s.num_cached + count == s.num_tokens, s.num_cached
            n = n if s.decoding else 0
            self.memory[s.slots[since + count : since + count + NODES * s.decoding]] = -2  # what was speculated
            self.memory[s.slots[since : since + count]] = s.tokens[since : since + count]
            self.memory[s.slots[since + count : since + count + n]] = 7
            s.num_cached += count + n
            for _ in range(n + 1 if samples else 0):
                if not s.finish_reason:
                    s.append(7, 0.0, frozenset())
                    self.got[s].append(7)
            self.scheduler.keep(s, since)
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
    def memory_holds_what_the_requests_have_computed(self):
        for s in self.alive:
            assert s.tokens[: s.num_tokens].tolist() == self.got[s]
            assert self.memory[s.slots[: s.num_cached]].tolist() == self.got[s][: s.num_cached] if s.pages else True

    @invariant()
    def pages_are_held_by_running_requests_only(self):
        running = self.scheduler.running
        held = [page for s in running for page in s.pages]
        assert len(set(held)) == PAGES - self.allocator.num_free and len(running) <= BATCH
        assert all(self.allocator.refs(page) == held.count(page) for page in range(PAGES))
        assert not any(s.pages or s.num_cached for s in self.scheduler.waiting)
        for s in running:  # what a request has yet to write is its alone
            assert all(self.allocator.refs(page) == 1 for page in s.pages[s.num_cached // PAGE_SIZE :])


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def scheduler(pages=PAGES, nodes=0, **options):
    return Scheduler(BlockAllocator(pages), PAGE_SIZE, BATCH, CHUNK, nodes, **options)


def run(scheduler, passes=1):
    """The plans of `passes` passes in which every request gets token 7: (request, rows, tokens found before)."""
    plans = []
    for _ in range(passes):
        plan = scheduler.plan()
        plans.append([(s, count, s.num_cached) for s, count in plan])
        for work in plan:
            s, samples, since = work.sequence, work.samples, work.sequence.num_cached
            s.num_cached += work.count
            if samples:
                s.append(7, 0.0, frozenset())
            scheduler.keep(s, since)
            if s.finish_reason:
                scheduler.remove(s)
    return plans


def test_decode_rows_and_a_prompt_chunk_share_a_pass():
    s = scheduler()
    first, second = sequence(2, 8), sequence(list(range(9)), 3)
    s.add(first)
    run(s)
    s.add(second)
    assert s.plan() == [(first, 1), (second, CHUNK)]


def test_a_request_larger_than_the_cache_is_refused_at_once():
    with pytest.raises(ValueError, match="need 41 tokens of KV cache, wanted at most 40"):
        scheduler().add(sequence(21, 20))
    with pytest.raises(ValueError, match="need 38 tokens of KV cache, wanted at most 37"):
        scheduler(nodes=3).add(sequence(20, 18))


@pytest.mark.parametrize("nodes", [0, 3])
def test_a_request_as_large_as_the_cache_ends(nodes):
    """The request is then alone, and can take pages only from itself."""
    s = scheduler(nodes=nodes)
    large, small = sequence(11, PAGES * PAGE_SIZE - nodes - 11), sequence([1, 2, 3], 5)
    s.add(large)
    s.add(small)
    while large.finish_reason is None:
        assert run(s)[0][0][0] is large  # never given up
    while small.finish_reason is None:
        assert len(run(s)[0]) == 1
    assert large.num_tokens == len(large.tokens) and small.token_ids == [7] * 5
    assert s.allocator.num_free == PAGES


def test_the_latest_arrival_gives_up_its_pages_and_keeps_its_tokens():
    s = scheduler(pages=6)
    first, second = sequence([1, 2, 3, 4, 5], 12), sequence([11, 12, 13, 14, 15], 12)
    s.add(first)
    s.add(second)
    run(s)
    while not s.preempted:
        run(s)
    assert s.preempted == [second] and list(s.waiting) == [second] and second.pages == [] and not second.num_cached
    got = second.token_ids
    assert len(got) > 3 and len(first.token_ids) > len(got)
    while not first.finish_reason:
        assert [w[0] for w in run(s)[0]] == [first]
    ((again, rows, found),) = run(s)[0]
    assert again is second and found + rows == second.prompt_len + len(got) and second.token_ids == [*got, 7]
    assert found in (4, 8)  # its blocks are still there, except those that the first request took
    assert not s.reused  # no prompt token: they were its own


def test_arrival_order_holds_for_a_small_request_behind_a_large_one():
    s = scheduler()
    large, small = sequence(32, 5), sequence(1, 1)
    s.add(sequence([1] * 8, 9))
    s.plan()
    s.add(large)
    s.add(small)
    s.plan()
    assert list(s.waiting) == [large, small]


# --- prefixes --------------------------------------------------------------------------------------------------------


def test_whole_blocks_of_a_prompt_are_found_but_for_its_last_token():
    for length, found in ((3, 0), (4, 0), (5, 4), (8, 4), (9, 8), (11, 8)):
        s = scheduler()
        s.add(sequence(20, 1))
        run(s, 4)
        again = sequence(length, 1)
        s.add(again)
        (((_, rows, cached),),) = run(s)
        assert (cached, rows) == (found, length - found) and s.reused == found


def test_a_block_is_named_by_its_tokens_and_all_before_them():
    a, b = sequence([1, 2, 3, 4, 5, 6, 7, 8], 4), sequence([0, 2, 3, 4, 5, 6, 7, 8, 9], 4)
    c = sequence([1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 9], 4)
    assert len({x.digest(block, 4) for x in (a, b) for block in (0, 1)}) == 4  # the same tokens behind others
    assert [c.digest(block, 4) for block in (1, 0)] == [a.digest(block, 4) for block in (1, 0)]
    assert c.digest(2, 4) not in (a.digest(0, 4), a.digest(1, 4)) and len(c.digest(2, 4)) == 16


def test_what_another_computes_in_this_pass_is_left_to_it():
    s = scheduler()
    one, two, other = sequence(11, 2), sequence(12, 2), sequence([3, 4, 5], 2)
    for x in (one, two, other):
        s.add(x)
    plans = run(s, 3)
    assert plans[0] == [(one, 6, 0)]  # the chunk is full
    assert plans[1] == [(one, 5, 6), (other, 1, 0)]  # the second block is on its way
    assert plans[2] == [(one, 1, 11), (two, 4, 8), (other, 2, 1)]
    assert s.allocator.refs(two.pages[1]) == 1  # the first is gone


def test_what_was_left_to_another_that_is_cancelled_is_computed():
    s = scheduler()
    one, two = sequence(11, 2), sequence(12, 2)
    s.add(one)
    s.add(two)
    run(s)
    s.remove(one)
    assert run(s) == [[(two, 6, 4)]]


def test_nothing_is_found_where_prefixes_are_not_kept():
    s = scheduler(prefix_caching=False)
    for _ in range(2):
        s.add(sequence(5, 1))
        assert [[work[1:] for work in plan] for plan in run(s)] == [[(5, 0)]]


def test_kept_blocks_go_the_oldest_first_where_pages_are_wanted():
    s = scheduler(pages=6)
    for i in range(3):
        s.add(sequence([i] * 8, 1))
        run(s, 2)
    assert s.allocator.num_free == 6
    s.add(sequence([9] * 8, 1))  # two pages: those of the first
    run(s, 2)
    for i, cached in ((1, 4), (2, 4), (0, 0)):
        s.add(sequence([i] * 8, 1))
        assert run(s, 1 if cached else 2)[0][0][2] == cached, i
