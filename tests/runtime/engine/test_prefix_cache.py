"""Requests share memory, and lose it: every request ends with the tokens that it would have had alone, with known
prefixes or without, preempted or not, speculated or not."""

import functools

import pytest
import torch
from fakes import FakeModel, FakeProposer, FakeTokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from ssd import kernels
from ssd.runtime import LLM, Engine, SamplingParams
from ssd.runtime.engine.sequence import Sequence
from ssd.runtime.sampling.text_stream import TextStream
from ssd.runtime.sync.policy import Policy
from ssd.runtime.sync.speculator import SyncSpeculator

PAGE_SIZE, NODES = 4, 5
POOL = [list(range(10, 34)), [*range(10, 22), *range(40, 60)]]  # prefixes that prompts share


class Checked:
    """An engine on a FakeModel, whose memory is compared with the tokens after every pass."""

    def __init__(self, speculate=False, layers=(), seed=0, **sizes):
        model = FakeModel()
        proposer = FakeProposer(model, seed, layers)
        policy = Policy(depth=4, width=2, nodes=NODES, adaptive=False)
        sizes = {"max_batch": 4, "max_model_len": 128, "kv_tokens": 512, "prefill_chunk": 16} | sizes
        self.engine = Engine(
            model, kernels.sample, model.config.eos_token_ids, page_size=PAGE_SIZE,
            **(dict(speculator=SyncSpeculator(proposer, policy), rule="coupled", nodes=NODES) if speculate else {}),
            **sizes,
        )  # fmt: skip
        self.proposer, self.alive, self.prefixes = proposer, [], {}
        allocate = self.engine.allocator.allocate

        def poisoned(count):  # the earlier contents of a page are of no use to its new owner
            pages = allocate(count)
            self.engine.kv.k[:, pages] = float("nan")
            return pages

        self.engine.allocator.allocate = poisoned

    def add(self, prompt, params):
        tokenizer = FakeTokenizer()
        s = Sequence.start(prompt, params.max_tokens, params, params.seed, TextStream(tokenizer.detokenizer()))
        self.engine.add(s)
        self.alive.append(s)
        return s

    def step(self):
        self.engine.step()
        self.check()
        self.alive = [s for s in self.alive if not s.finish_reason]

    def cancel(self, s):
        self.engine.cancel(s)
        self.alive.remove(s)
        self.check()

    def check(self):
        engine, allocator = self.engine, self.engine.allocator
        for s in self.alive:
            tokens = s.tokens[: s.num_tokens].tolist()
            if s.pages and not s.finish_reason:
                assert engine.kv.k.view(-1)[s.slots[: s.num_cached]].tolist() == tokens[: s.num_cached]
            for block in range(len(tokens) // PAGE_SIZE):
                prefix = tokens[: (block + 1) * PAGE_SIZE]
                assert self.prefixes.setdefault(s.digest(block, PAGE_SIZE), prefix) == prefix
        named = {name: page for name in self.prefixes if (page := allocator.find(name)) is not None}
        assert sorted(named.values()) == sorted(allocator._names)  # nothing else was named
        for name, page in named.items():
            assert engine.kv.k[0, page].flatten().tolist() == self.prefixes[name][-PAGE_SIZE:]
        held = [page for s in engine.scheduler.running for page in s.pages]
        assert all(allocator.refs(page) == held.count(page) for page in range(allocator.num_pages))
        assert allocator.num_free == allocator.num_pages - len(set(held))
        order = engine.scheduler.running + list(engine.scheduler.waiting)
        assert order == [s for s in self.alive if not s.finish_reason]


@functools.cache
def alone(prompt, params):
    engine = Checked(prefix_caching=False, prefill_chunk=128)
    s = engine.add(prompt, params)
    while not s.finish_reason:
        engine.engine.step()
    return s.token_ids, s.finish_reason


REQUEST = st.tuples(
    st.sampled_from(POOL), st.integers(0, 24), st.lists(st.integers(0, 9), max_size=9),
    st.builds(
        SamplingParams, temperature=st.sampled_from([0.0, 0.0, 0.7]), seed=st.integers(0, 2), ignore_eos=st.just(True),
        max_tokens=st.integers(1, 20),
    ),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    actions=st.lists(
        st.one_of(REQUEST, st.integers(1, 6), st.tuples(st.just("cancel"), st.integers(0, 9))), max_size=24
    ),
    kv_tokens=st.sampled_from([56, 64, 96, 512]), max_batch=st.integers(1, 4),
    prefill_chunk=st.sampled_from([1, 6, 16, 64]), speculate=st.sampled_from(["no", "tokens", "features"]),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_random_arrivals_prefixes_memory_and_cancellations(
    actions, kv_tokens, max_batch, prefill_chunk, speculate, seed
):
    layers = (1,) if speculate == "features" else ()
    sizes = {"kv_tokens": kv_tokens, "max_batch": max_batch, "prefill_chunk": prefill_chunk}
    checked = Checked(speculate != "no", layers, seed, **sizes)
    requests, cancelled = [], []
    for action in actions:
        if isinstance(action, int):
            for _ in range(action):
                checked.step()
        elif action[0] == "cancel":
            if checked.alive:
                cancelled.append(checked.alive[action[1] % len(checked.alive)])
                checked.cancel(cancelled[-1])
        else:
            pool, shared, own, params = action
            prompt = (*pool[:shared], *own) or (5,)
            requests.append((checked.add(prompt, params), prompt, params))
    while checked.alive:
        checked.step()
    for s, prompt, params in requests:
        tokens, reason = alone(prompt, params)
        if s in cancelled:
            assert s.token_ids == tokens[: len(s.token_ids)]
        else:
            assert (s.token_ids, s.finish_reason) == (tokens, reason)
    allocator = checked.engine.allocator
    assert allocator.num_free == allocator.num_pages


# --- faults of other engines, one by one ------------------------------------------------------------------------------

GREEDY = SamplingParams(seed=0, max_tokens=24, ignore_eos=True)


def finish(checked, s):
    while not s.finish_reason:
        checked.step()
    return s.token_ids


@pytest.mark.parametrize("seed", range(6))
def test_blocks_filled_by_accepted_runs_hold_what_their_names_say(seed):
    """A speculative step may fill a block and begin the next. Then no rejected token and none behind the block may
    enter its name, and no KV that has not been moved yet the page."""
    checked, prompt = Checked(True, seed=seed), (1, 2, 3)
    first = checked.add(prompt, GREEDY)
    answer = finish(checked, first)
    assert answer == alone(prompt, GREEDY)[0]
    metrics = checked.engine.metrics
    assert sum(metrics.accepted) > 6 and metrics.cached_prompt_tokens == 0
    longer = (*prompt, *answer[:-2], 77)  # the conversation goes on: all but its end is there
    again = checked.add(longer, GREEDY)
    assert finish(checked, again) == alone(longer, GREEDY)[0]
    assert metrics.cached_prompt_tokens == (len(longer) - 1) // PAGE_SIZE * PAGE_SIZE


def test_a_request_that_ends_inside_an_accepted_run_names_no_token_behind_its_end():
    answer, beyond = alone((1, 2, 3), GREEDY)[0], 0
    for seed in range(20):
        checked = Checked(True, seed=seed)
        checked.engine.eos_ids = frozenset([answer[9]])
        keep, ends = checked.engine.scheduler.keep, []
        checked.engine.scheduler.keep = lambda s, since, keep=keep, ends=ends: (
            ends.append(s.num_cached) or keep(s, since)
        )
        s = checked.add((1, 2, 3), SamplingParams(seed=0, max_tokens=24))
        finish(checked, s)  # `check` compares names and pages
        assert s.token_ids == answer[:10] and len(checked.engine.allocator._names) == 13 // PAGE_SIZE
        beyond += ends[-1] >= 16
    assert beyond  # accepted tokens behind the end filled a block


@pytest.mark.parametrize("chunk", [3, 64])
def test_prompts_behind_a_prefix_read_it_through_the_page_table(chunk):
    """The pages of a prefix are neither side by side, nor in order, nor near the rest of the request."""
    checked = Checked(prefill_chunk=chunk)
    allocator, prompt = checked.engine.allocator, tuple(range(20))
    ones = [allocator.allocate(1)[0] for _ in range(12)]
    allocator.free(ones[::2] + ones[1::2])  # a free list in disorder
    first = checked.add(prompt, GREEDY)
    checked.step()
    assert 2 in {abs(a - b) for a, b in zip(first.pages, first.pages[1:], strict=False)}
    finish(checked, first)
    longer = (*prompt[:17], 99, 98, 97, 96, 95)
    assert finish(checked, checked.add(longer, GREEDY)) == alone(longer, GREEDY)[0]
    assert checked.engine.metrics.cached_prompt_tokens == 16


@pytest.mark.parametrize("speculate", [False, True])
@pytest.mark.parametrize("prefix_caching", [False, True])
def test_a_preempted_request_goes_on_with_every_token_it_had(speculate, prefix_caching):
    checked = Checked(speculate, (1,), kv_tokens=44, max_batch=2, prefix_caching=prefix_caching)
    params = SamplingParams(seed=0, max_tokens=28, ignore_eos=True, temperature=0.5, logprobs=True)
    both, had = [checked.add((i, i, i), params) for i in (1, 2)], []
    while checked.alive:
        checked.step()
        if checked.engine.scheduler.preempted:
            had.append(both[1].token_ids)
    assert had and 0 < len(had[0]) < 28
    for s, i in zip(both, (1, 2), strict=True):
        assert s.token_ids == alone((i, i, i), params)[0] and len(s.logprobs) == len(s.pieces) == 28
    metrics = checked.engine.metrics
    assert metrics.preemptions == len(had) and metrics.cached_prompt_tokens == 0
    assert not metrics.stats()["cached_prompt_tokens"] and metrics.stats()["preemptions"] == len(had)
    assert metrics.prefill_tokens > 6 + len(had) or prefix_caching  # computed again


@pytest.mark.parametrize("speculate", [False, True])
def test_a_request_that_needs_all_memory_and_one_at_the_end_of_the_context_end(speculate):
    """A request alone takes pages from nobody, least of all from itself."""
    checked = Checked(speculate, kv_tokens=40, max_model_len=40, max_batch=3)
    params = SamplingParams(seed=0, max_tokens=39, ignore_eos=True)
    rest = SamplingParams(seed=0, max_tokens=1, ignore_eos=True)
    for prompt, asked in (((7,), params), (tuple(range(39)), rest)):
        others = [checked.add((8, 9), GREEDY) for _ in range(2)]
        s = checked.add(prompt, asked)
        assert finish(checked, s) == alone(prompt, asked)[0]
        assert all(finish(checked, o) == alone((8, 9), GREEDY)[0] for o in others)
    with pytest.raises(ValueError, match="prompt and answer need 100 tokens of KV cache, wanted at most"):
        checked.add((7,) * 40, SamplingParams(max_tokens=60, seed=0))


def test_a_pass_that_fails_names_nothing_and_can_be_repeated():
    checked = Checked(True, (1,))
    forward, calls = checked.engine.model.forward_features, [0]

    def fails(*args):
        calls[0] += 1
        found = forward(*args)
        if calls[0] % 3 == 0:
            raise RuntimeError("planted")
        return found

    checked.engine.model.forward_features = fails
    s = checked.add(tuple(range(30)), GREEDY)
    while not s.finish_reason:
        try:
            checked.step()
        except RuntimeError:
            checked.check()
    assert s.token_ids == alone(tuple(range(30)), GREEDY)[0] and calls[0] > 6


# --- what a user sees -------------------------------------------------------------------------------------------------


def test_a_conversation_computes_what_is_new():
    llm = LLM.from_model(FakeModel(), FakeTokenizer(), max_batch=2)
    prompt, params = list(range(40)), SamplingParams(max_tokens=30, ignore_eos=True)
    (first,) = llm.generate([prompt], params)
    (second,) = llm.generate([[*prompt, *first.token_ids, 1, 2, 3]], params)
    stats = llm.stats()
    assert stats["cached_prompt_tokens"] == 64 and stats["prefill_tokens"] == 40 + 73 - 64
    cold = LLM.from_model(FakeModel(), FakeTokenizer(), prefix_caching=False)
    assert cold.generate([[*prompt, *first.token_ids, 1, 2, 3]], params)[0].token_ids == second.token_ids
    assert cold.generate([[*prompt, *first.token_ids, 1, 2, 3]], params)[0].token_ids == second.token_ids
    assert cold.stats()["cached_prompt_tokens"] == 0 and not cold.describe()["prefix_caching"]
    with pytest.raises(TypeError, match="^prefix_caching: got 1"):
        LLM.from_model(FakeModel(), FakeTokenizer(), prefix_caching=1)


def test_one_prompt_asked_for_many_times_is_computed_once():
    llm = LLM.from_model(FakeModel(), FakeTokenizer(), max_batch=8)
    params = [SamplingParams(temperature=1.0, seed=i, max_tokens=4, ignore_eos=True) for i in range(8)]
    outputs = llm.generate([list(range(50))] * 8, params)
    assert llm.stats()["prefill_tokens"] == 50 + 7 * 2 and llm.stats()["cached_prompt_tokens"] == 7 * 48
    for i, output in enumerate(outputs):
        cold = LLM.from_model(FakeModel(), FakeTokenizer(), prefix_caching=False)
        assert cold.generate([list(range(50))], params[i])[0].token_ids == output.token_ids
    assert torch.isfinite(torch.tensor(llm.stats()["prefill_seconds"]))
