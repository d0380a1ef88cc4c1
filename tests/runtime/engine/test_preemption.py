"""On a real (tiny) Llama and with real drafts, the tokens are those of plain decoding in every mode: with or without
known prefixes, with too little memory or enough."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from speculation_helpers import KINDS, load

from ssd.model.tokenizer import Tokenizer
from ssd.runtime import LLM, SamplingParams
from ssd.runtime.devices.threads import CORES
from ssd.runtime.switching.cost_model import Costs

COMMON = "Answer in one sentence, and say why it is so: "
PROMPTS = [COMMON + text for text in ("what is it?", "who?", "when did it begin, and where?", "x" * 20)] + ["alone"]
PARAMS = [
    SamplingParams(seed=i, temperature=(0.0, 0.8)[i % 2], max_tokens=34, ignore_eos=True, logprobs=i == 1)
    for i in range(len(PROMPTS))
]
SMALL = dict(kv_tokens=112, max_batch=4)  # of about 220 that four answers need


def answers(llm):
    outputs = llm.generate(PROMPTS, PARAMS)
    assert llm.engine.allocator.num_free == llm.engine.allocator.num_pages
    return [(o.text, o.token_ids, o.logprobs, o.finish_reason) for o in outputs]


@pytest.fixture(scope="module")
def plain(tiny_folder, tiny_target):
    llm = LLM.from_model(tiny_target, Tokenizer(tiny_folder), threads=1, max_batch=1, prefix_caching=False)
    return answers(llm)


@pytest.fixture(scope="module")
def drafts(tiny_folder, tiny_target, tmp_path_factory):
    return {kind: load(kind, tiny_folder, tmp_path_factory.mktemp(kind), tiny_target, "bf16") for kind in KINDS}


def same(llm, plain):
    """Answers everything twice, first without known prefixes. Returns the statistics."""
    for _ in range(2):
        assert answers(llm) == plain
    stats = llm.stats()
    assert stats["cached_prompt_tokens"] > 0
    return stats


@pytest.mark.parametrize("chunk", [1, 16, 512])
def test_plain_decoding(chunk, tiny_folder, tiny_target, plain):
    llm = LLM.from_model(tiny_target, Tokenizer(tiny_folder), threads=1, prefill_chunk=chunk, **SMALL)
    assert same(llm, plain)["preemptions"] > 1


PAIRS = [(mode, kind) for kind in ("itself", "features", "eagle") for mode in ("sd", "ssd")]


@pytest.mark.parametrize("mode, kind", [*PAIRS, ("sd", "independent"), ("sd", "ngram")])
def test_speculation(mode, kind, tiny_folder, tiny_target, plain, drafts):
    draft = drafts.get(kind, kind)
    for shape in (dict(k=3), dict(k=2, tree_width=2, prefill_chunk=24)):
        lockstep = dict(lockstep=True, draft_threads=1, branches=6) if mode == "ssd" else {}
        llm = LLM.from_model(
            tiny_target, Tokenizer(tiny_folder), draft=draft, mode=mode, threads=1, **shape, **SMALL, **lockstep
        )
        assert same(llm, plain)["preemptions"] > 0
        if mode == "ssd":
            lanes = llm.engine.speculator
            assert lanes.supervisor.failures == 0 and not lanes.slots and len(lanes.slots.free) == 4
        elif kind != "ngram":
            assert len(llm.engine.speculator.proposer.free) == 4
        llm.close()


@pytest.mark.parametrize("kind", ["itself", "features", "eagle"])
def test_a_draft_proposes_the_same_behind_what_is_shared(kind, tiny_folder, tiny_target, drafts):
    """The draft reads the target's hidden states of every earlier token, whichever request computed them."""
    found = []
    for memory in (dict(prefix_caching=False, max_batch=2), SMALL):
        llm = LLM.from_model(
            tiny_target, Tokenizer(tiny_folder), draft=drafts[kind], mode="sd", k=3, threads=1, **memory
        )
        proposer, proposed = llm.engine.speculator.proposer, {}
        propose = proposer.propose

        def recorded(sequences, *rest, propose=propose, proposed=proposed):
            trees = propose(sequences, *rest)
            proposed.update((tuple(s.tokens[: s.num_tokens]), t.tokens) for s, t in zip(sequences, trees, strict=True))
            return trees

        proposer.propose = recorded
        answers(llm), answers(llm)
        found.append(proposed)
    cold, warm = found
    assert len(cold.keys() & warm.keys()) > 30 and all(warm[key] == cold[key] for key in cold.keys() & warm.keys())
    assert llm.stats()["cached_prompt_tokens"] > 100 and llm.stats()["preemptions"] > 0


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    order=st.lists(st.integers(0, len(PROMPTS) - 1), min_size=2, max_size=9), turns=st.randoms(use_true_random=False),
    mode=st.sampled_from(["ar", "sd", "ssd"]), kind=st.sampled_from(["itself", "features"]),
    kv_tokens=st.sampled_from([112, 160, 1024]), max_batch=st.integers(2, 5),
)  # fmt: skip
def test_random_arrivals_and_cancellations(
    order, turns, mode, kind, kv_tokens, max_batch, drafts, tiny_folder, tiny_target, plain
):
    more = {"ar": {}, "sd": dict(k=3), "ssd": dict(k=3, draft_threads=1, lockstep=True)}[mode]
    llm = LLM.from_model(
        tiny_target, Tokenizer(tiny_folder), draft=drafts[kind], mode=mode, threads=1, **more,
        kv_tokens=kv_tokens, max_batch=max_batch, prefill_chunk=turns.choice((7, 32, 512)),
    )  # fmt: skip
    waiting, streams, got, gone = list(enumerate(order)), {}, {i: [] for i in range(len(order))}, set()
    while waiting or streams:
        if waiting and (not streams or turns.random() < 0.3):
            i, which = waiting.pop(0)
            streams[i] = llm.stream(PROMPTS[which], PARAMS[which])
        i = turns.choice(sorted(streams))
        chunk = next(streams[i], None)
        if chunk is not None:
            got[i] += chunk.token_ids
        if chunk is None or turns.random() < 0.01:
            streams.pop(i).close()
            gone |= {i} if chunk is not None else set()
    for i, which in enumerate(order):
        want = plain[which][1]
        assert got[i] == (want[: len(got[i])] if i in gone else want)
    assert llm.engine.allocator.num_free == llm.engine.allocator.num_pages
    llm.close()


@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
def test_changes_of_mode(tiny_folder, tiny_target, plain, drafts, monkeypatch):
    times = {1: 0.01, 5: 0.012, 12: 0.02}
    monkeypatch.setattr("ssd.runtime.factory.costs_of", lambda *args: Costs(times, times, times, times))
    monkeypatch.setattr("ssd.runtime.switching.auto.EVERY", 5)
    llm = LLM.from_model(tiny_target, Tokenizer(tiny_folder), draft=drafts["features"], mode="auto", k=3, **SMALL)
    auto = llm.engine.speculator
    other = {"sd": {"sd": 1.0, "ssd": 2.0}, "ssd": {"sd": 2.0, "ssd": 1.0}}
    monkeypatch.setattr(auto, "predictions", lambda: other[auto.mode])
    assert same(llm, plain)["preemptions"] > 0
    assert auto.switches >= 4 and auto.parts["ssd"].supervisor.failures == 0
    llm.close()
