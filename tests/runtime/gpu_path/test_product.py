"""The whole product on a simulated GPU: its tokens are those of plain decoding there, and every read of memory is
ordered behind the write."""

import random
from functools import partial

import pytest
import product_runs
from product_runs import Case, Models, covering_cases, requests, told

from ssd.runtime.lanes.verify_lane import VerifyLane
from ssd.runtime.switching import auto, measure
from ssd.runtime.switching.cost_model import Costs
from ssd.runtime.sync.policy import Policy, Record

pytest.importorskip("llguidance")
TOKENS = 8
EVEN = Costs(*[{1: 0.01, 5: 0.012, 12: 0.02}] * 4)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return Models(tmp_path_factory.mktemp("models"), 1, "simgpu:0")


@pytest.fixture(scope="module")
def plain(models):
    """Answers of plain decoding, by kind of requests, memory and place."""
    known = {}

    def answers(case: Case):
        memory = "prefix" if case.memory == "prefix" else "ample"
        place = "target on the CPU" if case.place == "target on the CPU" else "one GPU"
        key = case.requests, memory, place
        if key not in known:
            llm = models.llm(case._replace(mode="ar", memory="ample", batch=8, place=place))
            known[key] = told(llm.generate(*zip(*requests(*key[:2], TOKENS), strict=True)))
        return known[key]

    return answers


@pytest.fixture
def eager(monkeypatch):
    """Speculation that always pays, a draft lane that is in time every other round, and mode auto that changes."""
    chance, observe = random.Random(2), VerifyLane.observe

    def late(self, round):
        if self.lane and self.slots and chance.random() < 0.5:
            import torch

            self.cache.wait_ready(torch.tensor([s.index for s in self.slots.by_sequence.values()]), 10_000_000)
        observe(self, round)

    monkeypatch.setattr(VerifyLane, "observe", late)
    monkeypatch.setattr(Policy, "wants_plain", lambda self, speed: False)
    monkeypatch.setattr(Policy, "costs", lambda self, sequences: (0.01, 0.01))
    monkeypatch.setattr(Record, "pays", lambda self: True)
    monkeypatch.setattr(auto, "EVERY", 3)
    monkeypatch.setattr("ssd.runtime.factory.costs_of", lambda *args: EVEN)
    better = {"sd": {"sd": 1.0, "ssd": 2.0}, "ssd": {"sd": 2.0, "ssd": 1.0}}
    monkeypatch.setattr(auto.AutoMode, "predictions", lambda self: better[self.mode])


def lane_of(llm) -> VerifyLane | None:
    speculator = llm.engine.speculator
    return speculator.parts["ssd"] if hasattr(speculator, "parts") else speculator if hasattr(speculator, "cache") else None


@pytest.mark.parametrize("case", covering_cases(), ids=str)
def test_tokens_are_those_of_plain_decoding(case, models, plain, eager, simulator):
    chosen = range(8) if case.batch > 1 else (0, 3)
    wanted = [plain(case)[i] for i in chosen]
    asked = [requests(case.requests, case.memory, TOKENS)[i] for i in chosen]
    import time; t = time.time(); simulator.launches = 0
    llm = models.llm(case)
    got = told(llm.generate(*zip(*asked, strict=True)))
    llm.close()
    stats = llm.stats()
    print(case, "s", time.time() - t, simulator.launches, stats["rounds"], stats["acceptance_rate"], stats["hit_rate"], stats["preemptions"], stats["cached_prompt_tokens"], stats["rounds_by_origin"], stats.get("mode_switches"))
    same = [i for i, (_, params) in enumerate(asked) if case.verify == "coupled" or params.temperature == 0]
    assert [got[i] for i in same] == [wanted[i] for i in same]
    assert simulator.faults == []
    assert sum(llm.metrics.accepted) > 0
    assert (stats["preemptions"] > 0) == (case.memory == "preemption")
    assert (stats["cached_prompt_tokens"] > 0) == (case.memory == "prefix")
    if lane := lane_of(llm):
        hits, answers = lane.counts.hits, stats["recoveries"]["local_retry"]["count"]
        assert hits > 0 if (case.mode, case.verify) == ("ssd", "coupled") else hits + answers > 0
        assert lane.supervisor.failures == 0
        assert stats["recoveries"]["rollback"]["count"] == 0
    if case.mode == "auto":
        assert stats["mode_switches"] > 0
