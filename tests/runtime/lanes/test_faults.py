"""Faults of either lane: they cost time, never a token."""

import pytest
from lane_helpers import make
from speculation_helpers import PROMPTS, answers, load

from ssd.model.draft import Draft
from ssd.runtime import SamplingParams
from ssd.runtime.lanes.draft_lane import DraftLane


def sometimes(fault, every=2):
    """Calls fault(lane) once in `every` steps, counted over all lanes."""
    count = [0]

    def before(lane):
        count[0] += 1
        if count[0] % every == 0:
            fault(lane)

    return before


def planted(monkeypatch, before):
    """Calls before(lane) ahead of every step of a draft lane."""
    step = DraftLane.step
    monkeypatch.setattr(DraftLane, "step", lambda self, *args: before(self) or step(self, *args))


def raises(lane):
    raise RuntimeError("planted")


def nan_logits(lane):
    forward = lane.runner.forward
    lane.runner.forward = lambda rows, hidden: tuple(t * float("nan") for t in forward(rows, hidden))


def huge_ids(lane):
    lane.cache.tokens.fill_(2**31 - 1)


def negative_ids(lane):
    lane.cache.tokens.fill_(-5)


def garbage_tokens(lane):
    lane.cache.tokens.random_(0, 272)


def garbage_keys(lane):
    lane.cache.keys.random_(0, 272)


def stale_epochs(lane):
    for f in lane.forests.values():
        f.epoch -= 2


def lost_forests(lane):
    lane.forests.clear()


def drops_outcomes(lane):
    import torch

    for slot, outcome in enumerate(lane.cache.wait_outcomes(lane.slots, lane.seen, 0)):
        if outcome:
            lane.seen[slot] = outcome.epoch
    assert torch.is_tensor(lane.seen)


def forgets_kv(lane):
    lane.runner.kv.k.fill_(float("nan"))


FAULTS = [
    raises, nan_logits, huge_ids, negative_ids, garbage_tokens, garbage_keys, stale_epochs, lost_forests,
    drops_outcomes, forgets_kv,
]  # fmt: skip


@pytest.mark.parametrize("kind", ["itself", "features"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.__name__)
def test_a_fault_of_the_draft_lane_costs_no_token(
    fault, kind, tiny_folder, tiny_target, plain, tmp_path, monkeypatch, caplog
):
    planted(monkeypatch, sometimes(fault))
    llm = make(tiny_folder, tiny_target, load(kind, tiny_folder, tmp_path, tiny_target, "bf16"), k=3)
    assert answers(llm) == plain
    lanes, warnings = llm.engine.speculator, [r for r in caplog.records if r.levelname == "WARNING"]
    if fault in (raises, nan_logits, forgets_kv):
        assert lanes.supervisor.failures == 3 and lanes.lane is None and len(warnings) == 1
        assert llm.stats()["recoveries"]["rollback"]["count"] >= 3
    else:
        assert not warnings


@pytest.mark.briefly
@pytest.mark.parametrize("seconds, failures", [(30.0, 1), (0.01, 0)])
def test_a_lane_that_hangs_is_given_up_within_a_second_and_a_slow_one_is_not(
    seconds, failures, tiny_folder, tiny_target, plain, monkeypatch
):
    import threading
    import time

    hung, fork = threading.Event(), DraftLane.fork
    slept = []

    def slow(self, forests):
        if seconds < 1 or not slept:
            slept.append(seconds)
            hung.wait(seconds) if seconds > 1 else time.sleep(seconds)
        fork(self, forests)

    monkeypatch.setattr(DraftLane, "fork", slow)
    llm = make(tiny_folder, tiny_target, Draft.load(tiny_folder, tiny_target, "bf16"), k=3, lockstep=False)
    begin = time.monotonic()
    while time.monotonic() - begin < 3.0 and (llm.engine.speculator.supervisor.failures < failures or not slept):
        assert answers(llm) == plain
    lanes = llm.engine.speculator
    assert slept and lanes.supervisor.failures == failures and time.monotonic() - begin < 3.0
    assert answers(llm) == plain
    hung.set()
    llm.close()


def test_an_exception_in_the_verify_lane_leaves_the_draft_lane_sound(tiny_folder, tiny_target, plain, monkeypatch):
    llm = make(tiny_folder, tiny_target, Draft.load(tiny_folder, tiny_target, "bf16"), k=3)
    forward, calls = tiny_target.forward, [0]

    def fails(batch, kv):
        calls[0] += 1
        if calls[0] == 9:
            raise RuntimeError("planted")
        return forward(batch, kv)

    monkeypatch.setattr(tiny_target, "forward", fails)
    with pytest.raises(RuntimeError, match="planted"):
        llm.generate(PROMPTS, SamplingParams(max_tokens=30))
    assert not llm.engine.speculator.slots and llm.engine.allocator.num_free == llm.engine.allocator.num_pages
    assert answers(llm) == plain
    assert llm.engine.speculator.supervisor.failures == 0
    llm.close()


def test_requests_that_leave_free_their_slots(tiny_folder, tiny_target, plain):
    llm = make(tiny_folder, tiny_target, Draft.load(tiny_folder, tiny_target, "bf16"), k=3, max_batch=2)
    for _ in range(5):
        stream = llm.stream("once upon a time", SamplingParams(max_tokens=30))
        next(stream), next(stream)
        stream.close()
    assert answers(llm) == plain
    assert len(llm.engine.speculator.slots.free) == 2 and not llm.engine.speculator.slots.owners
    llm.close()


def test_the_trace_tells_of_publications_hits_and_passes(tiny_folder, tiny_target, monkeypatch):
    llm = make(tiny_folder, tiny_target, Draft.load(tiny_folder, tiny_target, "bf16"), k=3, branches=6, max_batch=1)
    trace = llm.trace()
    llm.generate("once upon a time", SamplingParams(max_tokens=20, ignore_eos=True))
    published = [e for e in trace.events if e["name"] == "publish"]
    hits = [e for e in trace.events if e["name"] == "hit"]
    assert {e["args"]["depth"] for e in published} == {1, 2, 3} and {e["tid"] for e in published} == {2}
    assert len(hits) == llm.engine.speculator.counts.hits + 1 > 2 and {e["tid"] for e in hits} == {1}
