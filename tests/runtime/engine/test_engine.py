"""The loop: every request gets what it would have had alone."""

import threading

import pytest
import torch
from fakes import FakeModel, FakeTokenizer, make, no_page_leaked, sample
from hypothesis import given, settings
from hypothesis import strategies as st

from ssd.runtime import LLM, SamplingParams
from ssd.runtime.sampling.seeds import derived_seed

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


def test_a_row_without_numbers_ends_its_request_in_a_sentence_and_the_others_go_on():
    """Kernels of a GPU draw token -1 there, since nothing waits for the device."""
    drawn = []

    def without_numbers(logits, temperature, *arguments):
        tokens, probs = sample(logits, temperature, *arguments)
        drawn.append(tokens)
        bad = (temperature == 0.5) & (len(drawn) > 3)
        return torch.where(bad, -1, tokens), probs

    llm = LLM.from_model(FakeModel(), FakeTokenizer(), without_numbers)
    params = [SamplingParams(temperature=t, seed=1, max_tokens=8, ignore_eos=True) for t in (0.0, 0.5, 1.0)]
    wanted = [make().generate("abc", p)[0].token_ids for p in params]
    outputs = llm.generate(["abc"] * 3, params)
    assert [o.finish_reason for o in outputs] == ["length", "error", "length"]
    assert [outputs[0].token_ids, outputs[2].token_ids] == [wanted[0], wanted[2]]
    assert outputs[1].token_ids == wanted[1][:3]
    assert outputs[1].error == "logits: got no finite number for the token at position 6 of a request"
    assert no_page_leaked(llm)
