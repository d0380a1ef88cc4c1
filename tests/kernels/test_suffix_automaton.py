"""The suffix automaton against a comparison of every suffix with every place."""

import gc
import resource
import time
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ssd.kernels import SuffixAutomaton
from ssd.kernels.suffix_automaton.reference import follow

LONG = 32768


def texts():
    """A text of few letters, so that suffixes recur, and of copies of its own pieces."""
    letters = st.integers(1, 5).flatmap(lambda v: st.lists(st.integers(0, v - 1), max_size=60))
    pieces = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=8), min_size=1, max_size=4)
    copies = pieces.flatmap(lambda ps: st.lists(st.sampled_from(ps), max_size=10).map(lambda x: sum(x, [])))
    return letters | copies


@settings(max_examples=300, deadline=None, derandomize=True)
@given(texts(), st.integers(1, 4), st.integers(0, 9), st.randoms(use_true_random=False))
def test_matches_reference(tokens, width, limit, random):
    text, known = SuffixAutomaton(), 0
    while known < len(tokens):
        new = random.randint(1, 1 + len(tokens) // 4)
        got = text.follow(torch.tensor(tokens[known : known + new]), width, limit)
        known = min(known + new, len(tokens))
        assert got == follow(tokens[:known], width, limit)
        assert text.follow(torch.empty(0, dtype=torch.int64), width, limit) == got
    assert len(text) == len(tokens)


def awkward():
    generator = torch.Generator().manual_seed(0)
    draw = lambda high, n=LONG: torch.randint(0, high, (n,), generator=generator)  # noqa: E731
    a, b = [0], [0, 1]
    while len(b) < LONG:
        a, b = b, b + a
    yield from [("loop", torch.arange(LONG) % 7), ("one token", torch.zeros(LONG, dtype=torch.int64))]
    yield from [("random", draw(50000)), ("two tokens", draw(2)), ("copies", draw(50000, 1024).repeat(LONG // 1024))]
    yield from [("Fibonacci word", torch.tensor(b[:LONG])), ("all different", torch.arange(LONG))]


@pytest.mark.parametrize("tokens", [pytest.param(t, id=name) for name, t in awkward()])
def test_long_texts_cost_linear_memory_and_little_time(tokens):
    """The bound on time is loose, but quadratic work would miss it by far; bench.ngram measures."""
    text = SuffixAutomaton()
    begin = time.thread_time()
    text.follow(tokens[: LONG // 2], 0, 0)
    half = text.nbytes
    text.follow(tokens[LONG // 2 :], 0, 0)
    assert time.thread_time() - begin < 1.0
    assert half < 220 * LONG // 2 and text.nbytes < 220 * LONG
    short = tokens[-200:].tolist()
    assert SuffixAutomaton().follow(torch.tensor(short), 3, 5) == follow(short, 3, 5)


def test_memory_goes_with_the_object():
    text = SuffixAutomaton()
    gone = weakref.ref(text.state)
    del text
    assert gone() is None
    tokens = torch.arange(1 << 16)
    for _ in range(3):
        SuffixAutomaton().follow(tokens, 1, 1)
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB
    for _ in range(40):  # 7 MiB each
        SuffixAutomaton().follow(tokens, 1, 1)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


def test_bad_arguments_are_named_and_change_nothing():
    text = SuffixAutomaton()
    text.follow(torch.tensor([1, 2, 1]), 1, 1)
    for tokens, width, limit, error, words in [
        (torch.tensor([3, -1]), 1, 1, ValueError, "tokens: got -1 at 1, wanted 0 to"),
        (torch.tensor([1 << 31]), 1, 1, ValueError, "tokens: got 2147483648 at 0"),
        (torch.tensor([1], dtype=torch.int32), 1, 1, TypeError, "tokens: got dtype Int, wanted Long"),
        (torch.tensor([[1]]), 1, 1, ValueError, "tokens: got 2 dimensions"),
        (torch.tensor([3]), -1, 1, ValueError, "width: got -1"),
        (torch.tensor([3]), 1, -1, ValueError, "limit: got -1"),
    ]:
        with pytest.raises(error, match=words):
            text.follow(tokens, width, limit)
    assert text.follow(torch.tensor([2]), 1, 2) == (2, [[1, 2]])
    copy = text.state.clone()
    for other in (copy, torch.zeros(8, dtype=torch.uint8), torch.zeros(1)):
        with pytest.raises(ValueError, match="automaton: got .* wanted a tensor that suffix_automaton made"):
            torch.ops.ssd.suffix_follow(other, torch.tensor([1]), 1, 1)
