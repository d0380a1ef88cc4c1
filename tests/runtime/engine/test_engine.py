import math
import threading

import pytest
import torch
from fakes import EOS, FakeModel, FakeTokenizer, sample
from hypothesis import given, settings
from hypothesis import strategies as st

from ssd.runtime import LLM, SamplingParams
from ssd.runtime.sampling.seeds import derived_seed
from ssd.runtime.sampling.text_stream import TextStream


def make(model=None, **options):
    return LLM.from_model(model or FakeModel(), FakeTokenizer(), sample, **options)


def says(text, **options):
    """An engine that answers a prompt of one token with text, then ends the sequence."""
    return make(FakeModel(script=list(text.encode() if isinstance(text, str) else text)), **options)


def no_page_leaked(llm):
    engine = llm.engine
    return engine.allocator.num_free == engine.allocator.num_pages and not engine.scheduler.running


# --- every request gets what it would have had alone ---------------------------------------------------------------

REQUEST = st.tuples(
    st.lists(st.integers(0, 255), min_size=1, max_size=40),
    st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.0, 0.7, 1.0]),
        seed=st.integers(0, 2**63 - 1),
        max_tokens=st.integers(1, 24),
        ignore_eos=st.booleans(),
        logprobs=st.booleans(),
    ),
)


@settings(max_examples=40, deadline=None)
@given(
    requests=st.lists(REQUEST, min_size=1, max_size=7),
    arrivals=st.data(),
    max_batch=st.integers(1, 5),
    prefill_chunk=st.sampled_from([1, 3, 16, 512]),
    kv_tokens=st.sampled_from([64, 160, 1024]),
)
def test_requests_do_not_touch_each_other(requests, arrivals, max_batch, prefill_chunk, kv_tokens):
    alone = [make(max_batch=1).generate([ids], params)[0] for ids, params in requests]
    llm = make(max_batch=max_batch, prefill_chunk=prefill_chunk, kv_tokens=kv_tokens)
    waiting, streams, got = list(enumerate(requests)), {}, {i: [] for i in range(len(requests))}
    while waiting or streams:
        if waiting and (not streams or arrivals.draw(st.booleans())):
            i, (ids, params) = waiting.pop(0)
            streams[i] = llm.stream(ids, params)
        i = arrivals.draw(st.sampled_from(sorted(streams)))
        chunk = next(streams[i], None)
        if chunk is None:
            del streams[i]
        else:
            got[i].append(chunk)
    for i, want in enumerate(alone):
        assert sum((c.token_ids for c in got[i]), []) == want.token_ids
        assert "".join(c.text for c in got[i]) == want.text
        assert got[i][-1].finish_reason == want.finish_reason
        if want.logprobs is not None:
            assert sum((c.logprobs for c in got[i]), []) == want.logprobs
    assert no_page_leaked(llm)


@settings(max_examples=25, deadline=None)
@given(requests=st.lists(REQUEST, min_size=2, max_size=8), cancel=st.sets(st.integers(0, 7)), after=st.integers(0, 30))
def test_cancelled_requests_leave_the_others_alone(requests, cancel, after):
    llm = make(max_batch=3, kv_tokens=256, prefill_chunk=8)
    streams = [llm.stream(ids, params) for ids, params in requests]
    heads = {i: next(streams[i]).token_ids for i in sorted(cancel) if i < len(requests)}
    for i in heads:
        for _ in range(after % 5):
            heads[i] = heads[i] + next(streams[i], EMPTY).token_ids
        streams[i].close()
    outputs = {i: sum((c.token_ids for c in streams[i]), []) for i in range(len(requests)) if i not in heads}
    for i, (ids, params) in enumerate(requests):
        want = make().generate([ids], params)[0].token_ids
        assert outputs[i] == want if i in outputs else heads[i] == want[: len(heads[i])]
    assert no_page_leaked(llm)


class EMPTY:
    token_ids = []


def test_batch_of_generate_equals_each_alone_and_keeps_the_order():
    prompts = [[i, 2 * i + 1] * (i + 1) for i in range(12)]
    params = [SamplingParams(temperature=1.0, seed=i, max_tokens=1 + 5 * (i % 4), ignore_eos=True) for i in range(12)]
    done = []
    llm = make(max_batch=4, prefill_chunk=7)
    outputs = llm.generate(prompts, params, on_finish=lambda i, output: done.append((i, output)))
    assert [o.token_ids for o in outputs] == [
        make().generate([p], q)[0].token_ids for p, q in zip(prompts, params, strict=True)
    ]
    assert sorted(i for i, _ in done) == list(range(12)) and all(outputs[i] is o for i, o in done)
    assert [i for i, _ in done] != list(range(12))  # short ones left before long ones
    assert no_page_leaked(llm)


def test_threads_take_turns():
    llm = make(max_batch=4)
    results = {}

    def work(i):
        params = SamplingParams(max_tokens=20, seed=i, temperature=1.0)
        if i % 2:
            results[i] = llm.generate([[i] * 5], params)[0].token_ids
        else:
            results[i] = sum((c.token_ids for c in llm.stream([i] * 5, params)), [])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for i in range(4):
        alone = make().generate([[i] * 5], SamplingParams(max_tokens=20, seed=i, temperature=1.0))[0]
        assert results[i] == alone.token_ids
    assert no_page_leaked(llm)


# --- seeds ---------------------------------------------------------------------------------------------------------


def test_seeds():
    params = SamplingParams(temperature=1.0, max_tokens=16, ignore_eos=True)
    a, b = make(seed=5).generate([[1, 2], [1, 2]], params)
    assert a.token_ids != b.token_ids  # no two requests share their noise
    again = make(seed=5).generate([[1, 2], [1, 2]], params)
    assert [a.token_ids, b.token_ids] == [o.token_ids for o in again]
    assert make(seed=6).generate([[1, 2]], params)[0].token_ids != a.token_ids
    own = SamplingParams(temperature=1.0, max_tokens=16, ignore_eos=True, seed=derived_seed(5, 1))
    assert make(seed=9).generate([[1, 2]], own)[0].token_ids == b.token_ids
    assert len({derived_seed(s, r) for s in range(50) for r in range(50)}) == 2500
    llm = make(seed=5)
    with pytest.raises(ValueError):
        llm.generate([[1, 2], []], params)
    assert llm.generate([[1, 2]], params)[0].token_ids == a.token_ids  # a refused call takes no number


# --- where a request ends ------------------------------------------------------------------------------------------


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


def test_kinds_of_prompts():
    params = SamplingParams(max_tokens=8)
    by_text = make().generate("user:hi\n", params)[0]
    by_ids = make().generate(list(b"user:hi\n"), params)[0]
    by_chat = make().generate([{"role": "user", "content": "hi"}], params)[0]
    both = make().generate(["user:hi\n", list(b"user:hi\n"), [{"role": "user", "content": "hi"}]], params)
    assert len({tuple(o.token_ids) for o in [by_text, by_ids, by_chat, *both]}) == 1
    assert by_text.prompt == "user:hi\n" and by_chat.prompt == [{"role": "user", "content": "hi"}]
    assert make().generate([]) == []


@pytest.mark.parametrize(
    "prompts,error,message",
    [
        ([""], ValueError, r"prompts\[0\]: is empty"),
        (["a", []], ValueError, r"prompts\[1\]: is empty"),
        (["a" * 256], ValueError, r"prompts\[0\]: got 256 tokens, wanted at most 255 in a context of 256"),
        ([[1, 258]], ValueError, "got token 258, wanted integers from 0 to 257"),
        ([[1, -1]], ValueError, "got token -1"),
        ([[1, 2.5]], ValueError, "got token 2.5"),
        (["\udcff"], ValueError, "not UTF-8"),
        ([3.5], TypeError, "got float"),
        (3.5, TypeError, "got float"),
    ],
)
def test_bad_prompts(prompts, error, message):
    llm = make()
    with pytest.raises(error, match=message):
        llm.generate(prompts)
    assert not llm.engine.scheduler.waiting


@pytest.mark.parametrize(
    "name,value,error",
    [
        ("temperature", -0.1, ValueError),
        ("temperature", math.nan, ValueError),
        ("temperature", math.inf, ValueError),
        ("temperature", "hot", TypeError),
        ("top_p", 0.0, ValueError),
        ("top_p", 1.01, ValueError),
        ("top_p", math.nan, ValueError),
        ("top_k", -1, ValueError),
        ("top_k", 2**31, ValueError),
        ("top_k", 1.5, TypeError),
        ("min_p", -0.1, ValueError),
        ("min_p", 1.0, ValueError),
        ("max_tokens", 0, ValueError),
        ("max_tokens", True, TypeError),
        ("seed", -1, ValueError),
        ("seed", 2**63, ValueError),
        ("stop", "", ValueError),
        ("stop", ("a", ""), ValueError),
        ("stop", (3,), TypeError),
        ("stop", None, TypeError),
    ],
)
def test_bad_params_are_named(name, value, error):
    with pytest.raises(error, match=f"^{name}: got"):
        SamplingParams(**{name: value})


@pytest.mark.parametrize(
    "name,value,error",
    [
        ("max_batch", 0, ValueError),
        ("max_model_len", -1, ValueError),
        ("kv_tokens", 0, ValueError),
        ("prefill_chunk", 0.5, TypeError),
        ("threads", 0, ValueError),
        ("threads", 100000, ValueError),
        ("threads", [0, 0], ValueError),
        ("threads", [100000], ValueError),
        ("seed", -1, ValueError),
    ],
)
def test_bad_options_are_named(name, value, error):
    with pytest.raises(error, match=f"^{name}: got"):
        make(**{name: value})


def test_number_of_params():
    with pytest.raises(ValueError, match="params: got 1 for 2 prompts"):
        make().generate(["a", "b"], [SamplingParams()])
    with pytest.raises(TypeError, match="params: got dict"):
        make().generate("a", {"temperature": 1.0})


# --- failures and bookkeeping --------------------------------------------------------------------------------------


class Broken(FakeModel):
    def forward(self, batch, kv):
        logits = super().forward(batch, kv)
        if len(self.passes) == 4:
            raise RuntimeError("forward failed")
        return logits


def test_a_failing_pass_frees_its_requests_and_the_engine_lives_on():
    llm = make(Broken())
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    with pytest.raises(RuntimeError, match="forward failed"):
        llm.generate([[1], [2], [3]], params)
    assert no_page_leaked(llm)
    assert llm.generate([[1]], params)[0].token_ids == make().generate([[1]], params)[0].token_ids


def test_a_stream_survives_the_failing_pass_of_another_request():
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    llm = make(Broken())
    stream = llm.stream([1], params)
    got = next(stream).token_ids
    with pytest.raises(RuntimeError):
        llm.generate([[2]], params)
    got = got + sum((c.token_ids for c in stream), [])
    assert got == make().generate([[1]], params)[0].token_ids


def test_metrics():
    llm = make(prefill_chunk=4)
    llm.generate([[1] * 10], SamplingParams(max_tokens=6, ignore_eos=True))
    assert llm.engine.model.passes == [[4], [4], [2], *[[1]] * 5]
    stats = llm.metrics.stats()
    assert (llm.metrics.prefill_passes, llm.metrics.decode_passes) == (3, 5)
    assert (stats["prefill_tokens"], stats["decode_tokens"], stats["rounds"]) == (10, 5, 5)
    assert stats["mean_accepted_length"] == 1.0 and stats["hit_rate"] is None
    assert 0 < stats["overhead_fraction"] < 1
    assert stats["tokens_per_second"] == pytest.approx(5 / stats["decode_seconds"])
    assert make().metrics.stats()["tokens_per_second"] is None


def test_steady_decoding_makes_no_new_tensors():
    llm = make()
    batches = []
    forward = llm.engine.model.forward
    llm.engine.model.forward = lambda batch, kv: (batches.append(batch), forward(batch, kv))[1]
    llm.generate([[1, 2, 3]], SamplingParams(max_tokens=6, ignore_eos=True))
    assert len({id(b) for b in batches[1:]}) == 1
    assert batches[1].ids.dtype == batches[1].slots.dtype == batches[1].logit_rows.dtype == torch.int64
    assert {t.dtype for t in (batches[1].positions, batches[1].row_offsets, batches[1].page_table)} == {torch.int32}
