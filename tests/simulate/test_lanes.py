"""The simulation against the closed forms, in cases where both must agree."""

import math

import pytest
from simulate_helpers import Fixed, K, sure

from ssd.simulate import formula
from ssd.simulate.lanes import ABANDON, Plan, simulate
from ssd.simulate.outcomes import law


def test_plain_decoding_and_speculation_are_the_formulas():
    times = Fixed(1.0, 0.1)
    for batch in (1, 3):
        assert simulate(times, Plan("ar"), batch=batch, rounds=10).speed == pytest.approx(formula.ar(times, batch))
        for accept, tokens in ((1.0, K + 1), (0.0, 1)):
            tally = simulate(times, Plan("sd", K), sure(accept, 0), batch, rounds=10)
            assert tally.speed == pytest.approx(formula.sd(times, sure(accept, 0), K, batch))
            assert tally.tokens == 10 * batch * tokens


@pytest.mark.parametrize("draft", [0.01, 0.1, 0.3])  # builds that fit into a verification, and one that does not
@pytest.mark.parametrize("hit", [0.0, 1.0])
@pytest.mark.parametrize("accept", [0.0, 1.0])
def test_theorem_7_where_nothing_is_left_to_chance(draft, hit, accept):
    rounds, times, outcomes = 200, Fixed(1.0, draft), sure(accept, hit)
    tally = simulate(times, Plan("ssd", K, 12, abandon="now"), outcomes, rounds=rounds)
    build, retry = max(1.0, (K + 1) * draft), 1 + K * draft
    # the first round has no speculation and is followed by a retry; the last one waits for a build like the others
    assert tally.seconds == pytest.approx(retry + (rounds - 1) * (build if hit else retry))
    assert tally.hits == (rounds - 1) * hit and tally.misses == (rounds - 1) * (1 - hit)
    steady = (tally.tokens - 1) / (tally.seconds - retry)  # without the first round
    assert steady == pytest.approx(formula.ssd(times, outcomes, K, 12), rel=1e-9)


@pytest.mark.parametrize("abandon", ABANDON)
@pytest.mark.parametrize("draft", [0.1, 0.3])
def test_theorem_7_in_the_mean(abandon, draft):
    times, outcomes, rounds = Fixed(1.0, draft), law(0.8, 1.0, [3] * (K + 1)), 3000
    tally = simulate(times, Plan("ssd", K, 18, abandon=abandon), outcomes, rounds=rounds)
    build = max(1.0, (K + 1) * draft)
    late = {"now": 1.0, "pass": math.ceil(1.0 / draft - 1e-9) * draft if build > 1 else 1.0, "never": build}[abandon]
    seconds = tally.hits * build + tally.misses * (late + K * draft) + 1 + K * draft  # and the first round
    assert tally.seconds == pytest.approx(seconds, abs=build)
    p = outcomes.hit_rate(K)
    assert abs(tally.hit_rate - p) < 4 * math.sqrt(p * (1 - p) / rounds)
    assert abs(tally.tokens / rounds - outcomes.expected(K)) < 4 * 2 / math.sqrt(rounds)
    if abandon != "pass":
        assert tally.speed == pytest.approx(formula.ssd(times, outcomes, K, 18, stalls=abandon == "never"), rel=0.04)


@pytest.mark.parametrize("batch", [2, 4])
def test_batches_wait_or_go_on(batch):
    times, outcomes = Fixed(1.0, 0.1), law(0.8, 1.0, [3] * (K + 1))
    speed = {
        w: simulate(times, Plan("ssd", K, 18, wait=w), outcomes, batch, 1000).speed for w in ("any", "all", "never")
    }
    assert speed["any"] == pytest.approx(formula.ssd(times, outcomes, K, 18, batch), rel=0.04)
    assert speed["never"] == pytest.approx(formula.ssd_going_on(times, outcomes, K, 18, batch), rel=0.04)
    assert speed["any"] < speed["all"]


def test_branches_are_taken_as_far_as_they_stand():
    """A verification takes 1 and a pass 0.3, so the pass over the new tokens and two levels are done when it ends."""
    tally = simulate(Fixed(1.0, 0.3), Plan("ssd", K, 8, whole=False, abandon="now"), sure(1.0, 1.0), rounds=101)
    assert tally.depths == K + 99 * 2 and tally.hits == 100
    late = simulate(Fixed(1.0, 0.6), Plan("ssd", K, 8, whole=False), sure(1.0, 1.0), rounds=50)
    assert late.hits == 0  # only the first pass is done, so every outcome is a miss however well it was predicted


def test_same_seed_same_run():
    run = [simulate(Fixed(1, 0.1), Plan("ssd", 3, 8), law(0.7, 1, [2] * 4), 2, 200, seed) for seed in (5, 5, 6)]
    assert run[0] == run[1] != run[2]


def test_plans_name_what_is_wrong():
    for bad, text in (({"mode": "x"}, "mode: got 'x'"), ({"wait": "x"}, "wait: got 'x'"), ({"k": 0}, "k: got 0")):
        with pytest.raises(ValueError, match=text):
            Plan(**{"mode": "ssd", "k": 3} | bad)
