"""Two lanes: whatever the draft lane prepares, in time or late, right or wrong, the tokens are those of plain
decoding."""

import pytest
from speculation_helpers import KINDS, PROMPTS, answers, load

from ssd.model.draft import Draft
from ssd.model.tokenizer import Tokenizer
from ssd.runtime import LLM, SamplingParams
from ssd.runtime.devices.threads import CORES
from ssd.runtime.lanes.draft_lane import DraftLane


@pytest.fixture(scope="module")
def plain(tiny_folder, tiny_target):
    return answers(LLM.from_model(tiny_target, Tokenizer(tiny_folder), seed=3, threads=1))


def make(tiny_folder, tiny_target, draft, **options):
    options = {"threads": 1, "draft_threads": 1, "seed": 3, "mode": "ssd", "lockstep": True} | options
    return LLM.from_model(tiny_target, Tokenizer(tiny_folder), draft=draft, **options)


SHAPES = [
    dict(k=3), dict(k=2, tree_width=2, branches=6, max_batch=2), dict(k=1, branches=1), dict(max_batch=1),
    dict(k=5, tree_width=3, branches=10, prefill_chunk=16),
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_those_of_plain_decoding(kind, shape, tiny_folder, tiny_target, plain, tmp_path, monkeypatch):
    llm = make(tiny_folder, tiny_target, load(kind, tiny_folder, tmp_path, tiny_target, "bf16"), **shape)
    assert answers(llm) == plain
    assert llm.engine.speculator.supervisor.failures == 0 and llm.engine.speculator.lane.rounds > 0


HITS = [
    dict(k=3, branches=40, max_batch=3), dict(k=4, tree_width=3, branches=18, max_batch=1),
    dict(k=1, branches=6, max_batch=1),
]  # fmt: skip


@pytest.mark.parametrize("shape", HITS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_target_as_its_own_draft_always_hits(shape, temperature, tiny_folder, tiny_target, monkeypatch):
    """If KV were moved wrongly, a candidate list taken from the wrong node, or a key off by one, the lane would
    miss."""
    llm = make(tiny_folder, tiny_target, Draft.load(tiny_folder, tiny_target, "bf16"), **shape)
    llm.generate(PROMPTS, SamplingParams(temperature=temperature, max_tokens=31, ignore_eos=True))
    stats = llm.stats()
    assert llm.engine.speculator.supervisor.failures == 0
    assert stats["hit_rate"] == 1.0 and stats["acceptance_rate"] == 1.0
    assert stats["mean_accepted_length"] > 0.7 * (1 + shape["k"])


@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
@pytest.mark.parametrize("kind", ["itself", "features"])
def test_two_threads(kind, tiny_folder, tiny_target, plain, tmp_path):
    draft = load(kind, tiny_folder, tmp_path, tiny_target, "bf16")
    for shape in SHAPES[:2]:
        llm = make(
            tiny_folder,
            tiny_target,
            draft,
            threads=list(CORES[:1]),
            draft_threads=list(CORES[-1:]),
            lockstep=False,
            **shape,
        )
        assert answers(llm) == plain
        assert llm.engine.speculator.supervisor.failures == 0
        llm.close()
        assert llm.engine.speculator.lane is None


# --- faults of the draft lane ---------------------------------------------------------------------------------------


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


# --- random delays, a backup draft, many requests -------------------------------------------------------------------


@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
@pytest.mark.parametrize("kind", ["itself", "independent", "features"])
@pytest.mark.parametrize("seed", [0, 1])
def test_delays_in_both_lanes_change_no_token(kind, seed, tiny_folder, tiny_target, plain, tmp_path, monkeypatch):
    import random
    import time

    from ssd.runtime.lanes.verify_lane import VerifyLane

    chance = random.Random(seed)

    def delayed(method):
        def call(*args, **more):
            time.sleep(chance.choice((0, 0, 0.0003, 0.002)))
            return method(*args, **more)

        return call

    for owner, names in ((DraftLane, ("compute", "take", "write")), (VerifyLane, ("propose", "observe", "_take"))):
        for name in names:
            monkeypatch.setattr(owner, name, delayed(getattr(owner, name)))
    draft = load(kind, tiny_folder, tmp_path, tiny_target, "bf16")
    for shape in (dict(k=3, max_batch=3), dict(k=2, tree_width=3, branches=6)):
        llm = make(tiny_folder, tiny_target, draft, lockstep=False, **shape)
        assert answers(llm) == plain
        assert llm.engine.speculator.supervisor.failures == 0
        llm.close()


@pytest.mark.parametrize("layers", [None, [1, 2]])
def test_the_larger_draft_is_tried_where_the_first_brings_little_and_left_where_it_brings_no_more(
    layers, tiny_folder, tiny_target, plain, tmp_path, monkeypatch
):
    from draft_helpers import write_draft

    from ssd.runtime.switching.backup_draft import BackupDraft

    monkeypatch.setattr(BackupDraft, "WINDOW", 4)
    weak = Draft.load(write_draft(tmp_path / "weak", layers=layers), tiny_target, "bf16")
    strong = Draft.load(write_draft(tmp_path / "strong", layers=[0, 2]), tiny_target, "bf16")
    llm = LLM.from_model(
        tiny_target,
        Tokenizer(tiny_folder),
        draft=weak,
        backup=strong,
        mode="ssd",
        k=3,
        lockstep=True,
        seed=3,
        threads=1,
    )
    both = llm.engine.speculator
    assert both.layers == ((0, 2) if layers is None else (0, 1, 2))
    for _ in range(3):
        assert answers(llm) == plain
    assert both.switched.count and all(part.supervisor.failures == 0 for part in both.parts.values())
    assert (both.mode == "backup") == both.switched.count % 2  # it begins with the draft
    assert llm.stats()["recoveries"]["model_switch"]["count"] == both.switched.count


@pytest.mark.parametrize("seed", range(8))
def test_drafts_that_change_at_any_round_leave_the_lanes_sound(
    seed, tiny_folder, tiny_target, plain, tmp_path, monkeypatch
):
    import random

    from draft_helpers import write_draft

    from ssd.runtime.switching.backup_draft import BackupDraft

    chance = random.Random(seed)

    def decide(self, length):
        if chance.random() < 0.3:
            self.switch("backup" if self.mode == "draft" else "draft")
        self.rounds = self.tokens = 0

    monkeypatch.setattr(BackupDraft, "WINDOW", 1)
    monkeypatch.setattr("ssd.runtime.lanes.retry_value.RetryValue.pays", lambda self: True)
    monkeypatch.setattr(BackupDraft, "_decide", decide)
    weak, strong = (
        Draft.load(write_draft(tmp_path / str(layers), layers=layers), tiny_target, "bf16")
        for layers in ([1, 2], [0, 2])
    )
    options = {"mode": "ssd", "k": 3, "lockstep": True, "seed": 3, "threads": 1}
    llm = LLM.from_model(tiny_target, Tokenizer(tiny_folder), draft=weak, backup=strong, **options)
    for _ in range(3):
        assert answers(llm) == plain
    assert [part.supervisor.failures for part in llm.engine.speculator.parts.values()] == [0, 0]


def test_the_larger_draft_stays_while_it_gives_more_tokens_a_second():
    from time import perf_counter
    from types import SimpleNamespace

    from ssd.runtime.switching.backup_draft import BackupDraft

    def window(tokens, length):  # a window of rounds that took a second
        both.rounds, both.tokens, both.began = BackupDraft.WINDOW, tokens, perf_counter() - 1.0
        both._decide(length)
        return both.mode

    parts = [SimpleNamespace(layers=(), pause=lambda: None, trace=None) for _ in range(2)]
    both = BackupDraft(*parts)
    assert window(90, 1.9) == "draft"  # it brings enough
    assert window(60, 1.2) == "backup"
    assert window(100, 2.2) == "backup" and window(100, 2.2) == "backup"
    assert window(20, 1.1) == "draft" and both.rest == BackupDraft.REST
    assert [window(60, 1.2) for _ in range(11)] == ["draft"] * 10 + ["backup"]  # after 512 rounds
    assert both.switched.count == 3


def soak(llm, requests, seed, faults):
    """Runs many requests with cancellations and faults, and compares each with its answer alone. Returns the growth in
    bytes after the first half."""
    import random
    import resource

    chance, want, half = random.Random(seed), {}, 0
    alone = LLM.from_model(llm.engine.model, llm.tokenizer, threads=1, max_batch=1)
    cases = []
    for i in range(12):
        params = SamplingParams(temperature=chance.choice((0.0, 0.8)), seed=i, max_tokens=chance.randint(1, 40))
        cases.append(("".join(chance.choice("abc xyz") for _ in range(chance.randint(1, 60))), params))
        want[i] = alone.generate(*cases[i])[0].token_ids
    done = 0
    while done < requests:
        if done >= requests // 2 and not half:
            half = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        picked = [chance.randrange(12) for _ in range(chance.randint(1, 9))]
        if chance.random() < 0.2:
            stream = llm.stream(*cases[picked[0]])
            next(stream)
            stream.close()
        if faults and chance.random() < 0.1:
            lanes = llm.engine.speculator
            lanes.supervisor.failures = 0  # they would add up to the end of speculation
            if lanes.lane:
                lanes.lane.error = RuntimeError("planted")
        outputs = llm.generate([cases[i][0] for i in picked], [cases[i][1] for i in picked])
        assert [o.token_ids for o in outputs] == [want[i] for i in picked]
        done += len(picked)
    engine = llm.engine
    assert engine.allocator.num_free == engine.allocator.num_pages and not engine.scheduler.running
    lanes = engine.speculator
    assert not lanes.slots and not lanes.slots.owners
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - half) * 1024


@pytest.mark.parametrize("requests", [150, pytest.param(2000, marks=pytest.mark.slow)])
def test_soak(requests, tiny_folder, tiny_target, tmp_path):
    draft = load("features", tiny_folder, tmp_path, tiny_target, "bf16")
    llm = make(tiny_folder, tiny_target, draft, k=3, lockstep=False, max_batch=4, kv_tokens=104)
    assert soak(llm, requests, 0, faults=True) < 20 << 20
    assert llm.stats()["preemptions"] > 0 and llm.stats()["cached_prompt_tokens"] > 100
    llm.close()
