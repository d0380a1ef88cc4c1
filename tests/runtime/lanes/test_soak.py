"""Many requests with cancellations and faults: every answer is right, and nothing is held or grows."""

import pytest
from lane_helpers import make
from speculation_helpers import load

from ssd.runtime import LLM, SamplingParams


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
