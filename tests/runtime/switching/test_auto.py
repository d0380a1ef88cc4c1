"""The mode that chooses among the others: its formulas, its decisions, and that it never changes a token."""

import json
import os

import pytest
import torch
from draft_helpers import write_draft
from output_helpers import requests, told
from speculation_helpers import PROMPTS, answers, load

from ssd.model.draft import Draft
from ssd.model.tokenizer import Tokenizer
from ssd.runtime import LLM, SamplingParams
from ssd.runtime.devices.threads import CORES
from ssd.runtime.switching.cost_model import Costs, at, expected
from ssd.runtime.switching.measure import ROWS, DraftTimer, TargetTimer, costs_of
from ssd.runtime.sync.policy import Policy, Record

SLOW, FAST = {1: 0.01, 5: 0.012, 12: 0.02}, {1: 0.001, 5: 0.0012, 12: 0.002}
two_cores = pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")


def test_formulas():
    assert expected(0.0, 5) == 1 and expected(1.0, 5) == 6 and expected(0.5, 2) == 1.75
    assert (
        at(SLOW, 1) == pytest.approx(0.01)
        and at(SLOW, 3) == pytest.approx(0.011)
        and at(SLOW, 19) == pytest.approx(0.028)
    )
    costs = Costs(SLOW, FAST, SLOW, FAST)
    assert costs.sd(0.0) == pytest.approx(100)  # plain decoding
    best = max(expected(0.8, k) / (at(SLOW, k + 1) + k * 0.001) for k in range(9))
    assert costs.sd(0.8) == pytest.approx(best) and best > 200
    assert costs.ssd(0.8, 1.0, 4, 12) == pytest.approx(expected(0.8, 4) / 0.012)
    assert costs.ssd(0.8, 0.5, 4, 12) == pytest.approx(expected(0.8, 4) / (0.012 + 0.5 * 4 * 0.001))
    slow_draft = Costs(SLOW, FAST, SLOW, {n: 10 * t for n, t in FAST.items()})
    assert slow_draft.ssd(0.8, 1.0, 4, 12) == pytest.approx(expected(0.8, 1) / (2 * 0.02))  # too slow for more than one


@two_cores
def test_costs_are_measured_once_for_a_machine_and_pair(tiny_folder, tiny_target, tmp_path, monkeypatch):
    draft = Draft.load(write_draft(tmp_path / "d", layers=[1]), tiny_target, "bf16")
    arrangement = (list(CORES), list(CORES[:1]), list(CORES[-1:]))
    cache = tmp_path / "cache"
    for timer in (TargetTimer, DraftTimer):  # on a clock of their own
        run = timer.run
        monkeypatch.setattr(timer, "run", lambda self, rows, run=run: run(self, rows) and 1e-3 * rows)
    costs = costs_of(tiny_target, draft, *arrangement, cache)
    assert all(set(times) == set(ROWS) and min(times.values()) > 0 for times in vars(costs).values())
    assert torch.ops.ssd.num_threads() == len(CORES)  # as before
    (file,) = cache.iterdir()
    assert costs_of(tiny_target, draft, *arrangement, cache) == costs
    stored = json.loads(file.read_text())
    busy = {name: {n: 9 * t for n, t in times.items()} for name, times in stored.items()}
    file.write_text(json.dumps(busy))  # kept from a busy hour
    assert costs_of(tiny_target, draft, *arrangement, cache) == costs
    assert json.loads(file.read_text()) == stored
    file.write_text("{")
    costs_of(tiny_target, draft, *arrangement, cache)
    assert json.loads(file.read_text()).keys() == stored.keys()
    other = Draft.load(write_draft(tmp_path / "e", layers=[2], outputs=50), tiny_target, "bf16")
    costs_of(tiny_target, other, *arrangement, cache)
    assert len(os.listdir(cache)) == 2


@two_cores
def test_a_draft_of_a_short_context_is_measured_within_it(tiny_target, tmp_path):
    draft = Draft.load(write_draft(tmp_path, layers=[1], max_position_embeddings=48), tiny_target, "bf16")
    assert len(draft.cos) == 48
    costs = costs_of(tiny_target, draft, list(CORES), list(CORES[:1]), list(CORES[-1:]), None)
    assert min(costs.draft_together[n] for n in ROWS) > 0


def make(tiny_folder, tiny_target, draft, monkeypatch, tmp_path, costs):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("ssd.runtime.factory.costs_of", lambda *args: costs)
    monkeypatch.setattr("ssd.runtime.switching.auto.EVERY", 5)
    return LLM.from_model(tiny_target, Tokenizer(tiny_folder), draft=draft, mode="auto", k=3, branches=20, seed=3)


@two_cores
@pytest.mark.parametrize("kind", ["itself", "independent", "features", "eagle"])
def test_changes_of_mode_leave_the_tokens_alone(kind, tiny_folder, tiny_target, tmp_path, monkeypatch):
    plain = answers(LLM.from_model(tiny_target, Tokenizer(tiny_folder), seed=3, threads=1))
    draft = load(kind, tiny_folder, tmp_path, tiny_target, "bf16")
    llm = make(tiny_folder, tiny_target, draft, monkeypatch, tmp_path, Costs(SLOW, FAST, SLOW, FAST))
    auto = llm.engine.speculator
    other = {"sd": {"sd": 1.0, "ssd": 2.0}, "ssd": {"sd": 2.0, "ssd": 1.0}}
    monkeypatch.setattr(auto, "predictions", lambda: other[auto.mode])
    for _ in range(3):
        assert answers(llm) == plain
    assert auto.switches >= 4 and auto.parts["ssd"].supervisor.failures == 0
    assert llm.stats()["mode_switches"] == auto.switches
    llm.close()


@two_cores
def test_changes_of_mode_under_penalties_and_a_grammar(tiny_folder, tiny_target, tmp_path, monkeypatch):
    pytest.importorskip("llguidance")
    prompts, params = requests()
    prompts, params = [*prompts, "x"], [*params, SamplingParams(1.0, seed=1, regex="(19|20)[0-9]{20}", logprobs=True)]
    plain = told(LLM.from_model(tiny_target, Tokenizer(tiny_folder), threads=1).generate(prompts, params))
    draft = Draft.load(write_draft(tmp_path / "d", layers=[1, 2]), tiny_target, "bf16")
    llm = make(tiny_folder, tiny_target, draft, monkeypatch, tmp_path, Costs(SLOW, FAST, SLOW, FAST))
    auto = llm.engine.speculator
    other = {"sd": {"sd": 1.0, "ssd": 2.0}, "ssd": {"sd": 2.0, "ssd": 1.0}}
    monkeypatch.setattr(auto, "predictions", lambda: other[auto.mode])
    assert told(llm.generate(prompts, params)) == plain and auto.switches >= 2
    llm.close()


class Trusting:
    """A correction that stays 1 whatever was measured."""

    def get(self, default):
        return 1.0

    def add(self, value):
        pass


@two_cores
def test_the_mode_follows_the_prediction(tiny_folder, tiny_target, tmp_path, monkeypatch):
    draft = Draft.load(tiny_folder, tiny_target, "bf16")
    slow = {n: 100 * t for n, t in SLOW.items()}
    params = SamplingParams(max_tokens=60, ignore_eos=True)
    for costs, mode in ((Costs(slow, slow, SLOW, FAST), "ssd"), (Costs(SLOW, FAST, slow, slow), "sd")):
        llm = make(tiny_folder, tiny_target, draft, monkeypatch, tmp_path, costs)
        monkeypatch.setattr(llm.engine.speculator, "correction", {"sd": Trusting(), "ssd": Trusting()})
        llm.generate(PROMPTS[1], params)
        assert llm.stats()["mode"] == mode, costs
        llm.close()


def test_without_a_draft_the_text_itself_proposes(tiny_folder, tiny_target):
    llm = LLM.from_model(tiny_target, Tokenizer(tiny_folder), draft="ngram", mode="auto", seed=3, threads=1)
    assert answers(llm) == answers(LLM.from_model(tiny_target, Tokenizer(tiny_folder), seed=3, threads=1))


def share_of_plain(tokens: float, round_ms: float, steps: int = 1200, answer: int = 1200) -> float:
    """The share of plain steps under a policy. A plain step takes 4 ms, and 5 ms shortly after speculation; answer:
    rounds of an answer."""
    policy, overall = Policy(), Record(rate=0.01)
    record, plain, since = Record(overall), 0, 0
    for i in range(steps):
        if i % answer == 0:
            record = Record(overall)
        if policy.wants_plain(overall.speed()) or not record.pays():
            plain, since = plain + 1, since + 1
            policy.verified(1, 0, 4e-3 if since > Policy.SETTLE else 5e-3)
        else:
            since = 0
            policy.verified(1, 4, round_ms / 1e3)
            for r in (record, overall):
                r.add(tokens, round_ms / 1e3 / policy.plain.get(1))
    return plain / steps


def test_plain_steps_are_timed_where_they_are_at_their_best():
    """A round that gives 1.9 tokens in the time of 2 plain steps does not pay, though it seems to beside slow ones."""
    assert share_of_plain(1.9, 8.0) > 0.9
    assert share_of_plain(1.9, 4.4) < 0.06  # in that of 1.1 it does
    assert share_of_plain(1.15, 4.4) < 0.25  # a little
    assert share_of_plain(1.9, 8.0, answer=90) > 0.97  # every answer begins where the last one ended
