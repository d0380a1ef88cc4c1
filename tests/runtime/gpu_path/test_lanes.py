"""Order between lanes on one GPU: a lane that dies, and faults that are planted into the product."""

import gc
import threading
from contextlib import nullcontext

import pytest
import simulated_gpu
from product_runs import Case, Models, PlainAnswers, lanes_of, requests, told

from ssd.model.draft import Draft
from ssd.model.llama import Llama
from ssd.runtime.devices.placement import Placement
from ssd.runtime.drafting.draft_memory import DraftMemory
from ssd.runtime.drafting.draft_runner import DraftRunner

CASE = Case("ssd", "coupled", "chain", "features", 2, "plain", "ample", "one GPU")
INDEPENDENT = CASE._replace(draft="independent")
UNORDERED, FREED, NOT_THERE = "no event orders them", "was freed while", "has not arrived"


@pytest.fixture
def own_models(tmp_path):
    """Models that nobody else holds."""
    return Models(tmp_path, 1, "simgpu:0")


def run(models, case=CASE, **more):
    """The answers to two requests, how many draft lanes were given up, and the statistics."""
    llm = models.llm(case, **more)
    got = told(llm.generate(*zip(*requests(case, 8)[:2], strict=True)))
    llm.close()
    return got, lanes_of(llm).supervisor.failures, llm.stats()


def release(models) -> None:
    """Free the memory of models, and of what used them."""
    models.target.cache_clear(), models.draft.cache_clear()
    gc.collect()


def dies(monkeypatch, times: int) -> list[int]:
    """Lets draft lanes raise behind a pass that nobody has waited for, so many times. Returns [how many did]."""
    candidates, died = DraftRunner.candidates, [0]

    def raising(self, *args):
        if threading.current_thread().name == "draft lane" and died[0] < times and self.passes > 2:
            died[0] += 1
            raise RuntimeError("planted")
        return candidates(self, *args)

    monkeypatch.setattr(DraftRunner, "candidates", raising)
    return died


@pytest.mark.parametrize("times", [1, 3])
def test_lanes_that_die_behind_a_pass_change_no_token(times, own_models, eager, simulator, monkeypatch):
    """One has a successor; after three decoding goes on without, and nobody waits for the last one's pass."""
    wanted, died = PlainAnswers(own_models).of(CASE, 8)[:2], dies(monkeypatch, times)
    got, failures, stats = run(own_models)
    assert got == wanted and died == [times]
    assert times - 1 <= failures == stats["recoveries"]["rollback"]["count"] and (stats["hit_rate"] > 0 or times == 3)
    release(own_models)
    assert simulator.faults == []


def reads_nothing(monkeypatch, draft):
    monkeypatch.setattr(Placement, "reads", lambda self, tensors: None)
    dies(monkeypatch, times=3)


def names_what_a_llama_has(monkeypatch, draft):
    monkeypatch.setattr(Draft, "tensors", Llama.tensors)
    dies(monkeypatch, times=3)


def makes_its_cache_on_another_stream(monkeypatch, draft):
    make = DraftMemory.__init__

    def anywhere(self, draft, pages, placement, *rest):
        with monkeypatch.context() as patch:
            patch.setattr(placement, "stream", nullcontext)
            make(self, draft, pages, placement, *rest)

    monkeypatch.setattr(DraftMemory, "__init__", anywhere)
    dies(monkeypatch, times=3)


def follows_nothing(monkeypatch, draft):
    monkeypatch.setattr(simulated_gpu.Stream, "wait_stream", lambda self, other: None)
    draft.weights.norm = draft.weights.norm * 1  # queued, and nobody waits


def moves_on_another_stream(monkeypatch, draft):
    move = DraftRunner.move

    def anywhere(self, pairs):
        with monkeypatch.context() as patch:
            patch.setattr(self.placement, "stream", nullcontext)
            move(self, pairs)

    monkeypatch.setattr(DraftRunner, "move", anywhere)


def waits_for_nothing(monkeypatch, draft):
    monkeypatch.setattr(simulated_gpu.Stream, "synchronize", lambda self: None)


@pytest.mark.parametrize(
    "plant, fault",
    [
        (reads_nothing, FREED), (names_what_a_llama_has, FREED), (makes_its_cache_on_another_stream, FREED),
        (follows_nothing, UNORDERED), (moves_on_another_stream, UNORDERED), (waits_for_nothing, NOT_THERE),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)  # fmt: skip
def test_a_planted_fault_is_found(plant, fault, own_models, eager, simulator, monkeypatch):
    case = CASE if fault == FREED else INDEPENDENT
    plant(monkeypatch, own_models.of(case)[1])
    try:
        run(own_models, case, lockstep=case is INDEPENDENT)
    except simulated_gpu.Fault:  # in the verify lane; in the draft lane it ends the lane
        pass
    release(own_models)
    assert simulator.faults and all(fault in found for found in simulator.faults)
