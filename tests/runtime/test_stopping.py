"""Where an answer ends, and the text that it releases on the way."""

import math

import pytest
from fakes import EOS, FakeModel, make, no_page_leaked, says
from hypothesis import given, settings
from hypothesis import strategies as st

from ssd.runtime import SamplingParams
from ssd.runtime.sampling.text_stream import TextStream


def test_eos_ends_and_is_not_text():
    output = says("hello").generate([[0]])[0]
    assert (output.text, output.finish_reason, output.token_ids) == ("hello", "stop", [*b"hello", EOS])
    second = says([*b"he", 257, *b"llo"]).generate([[0]])[0]
    assert (second.text, second.finish_reason) == ("he", "stop")  # any of the EOS ids


def test_ignore_eos_goes_on():
    output = says([*b"he", EOS, 257, *b"llo"]).generate([[0]], SamplingParams(ignore_eos=True, max_tokens=7))[0]
    assert (output.text, output.finish_reason, len(output.token_ids)) == ("hello", "length", 7)


def test_max_tokens_and_context():
    output = says("hello").generate([[0]], SamplingParams(max_tokens=3))[0]
    assert (output.text, output.finish_reason) == ("hel", "length")
    assert says("hello").generate([[0]], SamplingParams(max_tokens=6))[0].finish_reason == "stop"  # EOS is the sixth
    output = make(max_model_len=20).generate([[1] * 15], SamplingParams(max_tokens=100, ignore_eos=True))[0]
    assert (len(output.token_ids), output.finish_reason) == (5, "length")
    output = make(FakeModel(context=20)).generate([[1] * 19], SamplingParams(ignore_eos=True))[0]
    assert (len(output.token_ids), output.finish_reason) == (1, "length")


@pytest.mark.parametrize(
    "text,stop,want",
    [
        ("one two three", "two", "one "),
        ("one two three", ("three", "two"), "one "),
        ("aab", ("ab",), "a"),
        ("ababac", "abac", "ab"),
        ("xabc", ("abc", "b"), "xa"),  # b is complete first
        ("xabc", ("bc", "abc"), "x"),  # both at once: the longest
        ("no such", "suck", "no such"),  # held back, then released at the end
        ("日本語。終", "。", "日本語"),
        ("end", "end", ""),
    ],
)
def test_stop_strings(text, stop, want):
    llm = says(text)
    params = SamplingParams(stop=stop)
    output = llm.generate([[0]], params)[0]
    assert output.text == want and output.finish_reason == "stop"
    assert "".join(c.text for c in says(text).stream([0], params)) == want
    assert no_page_leaked(llm)


def test_stop_string_wins_over_a_length_that_comes_with_it():
    output = says("one two").generate([[0]], SamplingParams(stop="two", max_tokens=7))[0]
    assert (output.text, output.finish_reason) == ("one ", "stop")


def test_text_is_held_back_only_as_long_as_it_may_be_a_stop_string():
    seen = [c.text for c in says("a<b<<end>>c").stream([0], SamplingParams(stop="<<end>>!"))]
    assert seen[:5] == ["a", "", "<b", "", ""]
    assert "".join(seen) == "a<b<<end>>c"


class Pieces:
    def add(self, token):
        return token

    def hidden(self, token):
        return ""

    def finish(self):
        return ""


@given(
    text=st.text("ab", max_size=30),
    stop=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    cuts=st.sets(st.integers(0, 30)),
)
def test_stop_strings_do_not_depend_on_the_pieces(text, stop, cuts):
    ends = [i + 1 for i in range(len(text)) if any(text[: i + 1].endswith(s) for s in stop)]
    if ends:
        want = text[: ends[0] - max(len(s) for s in stop if text[: ends[0]].endswith(s))]
    else:
        want = text
    stream, got, cuts = TextStream(Pieces(), tuple(stop)), "", sorted({0, *cuts, len(text)} & set(range(len(text) + 1)))
    for a, b in zip(cuts, cuts[1:], strict=False):
        got += stream.add(text[a:b])
        assert want.startswith(got)  # nothing is taken back
    assert got + stream.finish() == want and stream.stopped == bool(ends)


@settings(max_examples=50, deadline=None)
@given(text=st.text(min_size=1, max_size=12))
def test_streamed_pieces_are_whole_characters(text):
    pieces = [c.text for c in says(text).stream([0])]
    assert "".join(pieces) == text


def test_broken_character_at_the_end():
    output = says([0xE6, 0x97]).generate([[0]])[0]
    assert output.text == "\ufffd"
    output = says("日").generate([[0]], SamplingParams(max_tokens=2))[0]
    assert (output.text, output.finish_reason) == ("\ufffd", "length")


def test_logprobs():
    llm = make()
    output = llm.generate([[1, 2, 3]], SamplingParams(max_tokens=5, logprobs=True, ignore_eos=True))[0]
    tokens = [1, 2, 3]
    for token, logprob in zip(output.token_ids, output.logprobs, strict=True):
        assert math.isclose(logprob, FakeModel()._logits(tokens).log_softmax(0)[token], rel_tol=1e-6)
        tokens.append(token)
    assert llm.generate([[1, 2, 3]])[0].logprobs is None


# --- prompts -------------------------------------------------------------------------------------------------------
