"""Two lanes: whatever the draft lane prepares, in time or late, right or wrong, the tokens are those of plain
decoding."""

import pytest
from lane_helpers import make
from speculation_helpers import KINDS, PROMPTS, answers, load

from ssd.model.draft import Draft
from ssd.runtime import SamplingParams
from ssd.runtime.devices.threads import CORES
from ssd.runtime.lanes.draft_lane import DraftLane

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
