"""Text from tokens that arrive several at once: stop strings across tokens, whole characters, limits; compared with a
definition that looks at the whole text again after every token."""

import codecs
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ssd.model.draft import Draft
from ssd.model.tokenizer import Tokenizer
from ssd.runtime import LLM, SamplingParams
from ssd.runtime.sampling.text_stream import TextStream

EOS = 258


def said(pieces: list[bytes], stop, last_is_end: bool) -> tuple[str, int, bool]:
    """(text, tokens used, whether a stop string ended it) of an answer whose tokens have these bytes."""
    for count in range(len(pieces) + 1):
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(b"".join(pieces[:count]), final=last_is_end and count == len(pieces))
        ends = [n for n in range(len(text) + 1) if any(text[:n].endswith(s) for s in stop)]
        if ends:
            return text[: ends[0] - max(len(s) for s in stop if text[: ends[0]].endswith(s))], count, True
    return text, len(pieces), False


class Bytes:
    """Tokens of any number of bytes."""

    def __init__(self):
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token):
        return self.decoder.decode(token)

    def hidden(self, token):
        return ""

    def finish(self):
        return self.decoder.decode(b"", final=True)


CHARACTERS = st.sampled_from(["a", "b", "é", "日", "🙂", "\ufffd"])


@settings(max_examples=300, deadline=None)
@given(
    data=st.lists(
        st.one_of(CHARACTERS.map(str.encode), st.sampled_from([b"\xe6", b"\x97", b"\xff", b""])), max_size=14
    ),
    cuts=st.sets(st.integers(0, 60)),
    stop=st.lists(st.lists(CHARACTERS, min_size=1, max_size=3).map("".join), max_size=3),
)
def test_pieces_of_any_bytes_cut_anywhere(data, cuts, stop):
    data = b"".join(data)
    at = sorted({0, *cuts, len(data)} & set(range(len(data) + 1)))
    tokens = [data[a:b] for a, b in zip(at, at[1:], strict=False)]
    text, count, stopped = said(tokens, stop, True)
    stream, got = TextStream(Bytes(), tuple(stop)), []
    for token in tokens:
        got.append(stream.add(token))
        if stream.stopped:
            break
    got.append(stream.finish())
    assert "".join(got) == text and stream.stopped == stopped
    assert not stopped or len(got) == count + 1 or count == len(tokens)
    whole = text.encode("utf-8")
    assert all(whole.startswith("".join(got[:i]).encode()) for i in range(len(got)))


def cases(llm):
    """(token ids without stop string and limit, params): stop strings come from the text itself, limits are near their
    end."""
    chance, jobs = random.Random(5), []
    for i in range(36):
        grammar = dict(regex="(日|é|ab|🙂|b)*") if i % 2 else dict(ignore_eos=True)
        base = SamplingParams((0.0, 0.9)[i // 2 % 2], seed=i, max_tokens=40, **grammar)
        (free,) = llm.generate("once", base)
        begin = chance.randrange(max(1, len(free.text) - 3))
        found = free.text[begin : begin + chance.randint(1, 3)] or "q"
        stop = (found, *(["bé", "\ufffd\ufffd"] * (i % 3 == 0)))
        cap = chance.choice([40, said(pieces_of(llm, free.token_ids), stop, False)[1] + chance.randint(-1, 1)])
        jobs.append(
            (free.token_ids, SamplingParams(base.temperature, seed=i, max_tokens=max(cap, 1), stop=stop, **grammar))
        )
    return jobs


def pieces_of(llm, ids):
    return [llm.tokenizer._bytes[t] if t < 256 else b"" for t in ids]


@pytest.mark.parametrize("options", [dict(mode="sd", k=6), dict(mode="sd", k=3, tree_width=3), dict(mode="ssd", k=3)])
def test_stop_strings_caps_and_characters_when_several_tokens_come_at_once(options, tiny_folder, tiny_target):
    pytest.importorskip("llguidance")
    plain = LLM.from_model(tiny_target, Tokenizer(tiny_folder), threads=1)
    more = dict(lockstep=True, draft_threads=1) if options["mode"] == "ssd" else {}
    draft = Draft.load(tiny_folder, tiny_target, "bf16")  # whole runs are accepted
    llm = LLM.from_model(tiny_target, Tokenizer(tiny_folder), draft=draft, threads=1, **options, **more)
    jobs, ends = cases(plain), []
    params = [p for _, p in jobs]
    for (ids, p), got in zip(jobs, llm.generate(["once"] * len(jobs), params), strict=True):
        text, count, stopped = said(pieces_of(llm, ids[: p.max_tokens]), p.stop, True)
        eos = count == len(ids) and ids[-1] == EOS and not p.ignore_eos
        assert (got.text, got.token_ids) == (text, ids[:count])
        assert got.finish_reason == ("stop" if stopped or eos else "length")
        chunks = list(llm.stream("once", p)) if len(ends) < 12 else []
        assert not chunks or "".join(c.text for c in chunks) == text and chunks[-1].finish_reason == got.finish_reason
        ends.append(("stop" if stopped else "eos" if eos else "cap", count == p.max_tokens))
    assert {("stop", True), ("stop", False), ("cap", True)} <= set(ends)
    assert llm.stats()["mean_accepted_length"] > 2
