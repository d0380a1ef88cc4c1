"""The questions that the simulator answers, and serving with random arrivals."""

import pytest
from simulate_helpers import Fixed, K, sure

from ssd.simulate import formula, questions
from ssd.simulate.lanes import Plan
from ssd.simulate.published import PAIRS
from ssd.simulate.serving import Load, serve
from ssd.simulate.statistics import Statistics


def test_the_best_plan_is_the_best_of_those_tried(fitted):
    times = fitted.times(PAIRS["llama"])
    stats = Statistics(0.8, 1.0, "")
    choice = questions.best(times, stats, "sd")
    assert choice.plan.k == max(range(1, questions.LONGEST + 1), key=lambda k: formula.sd(times, stats.outcomes(k), k))
    assert questions.best(times, Statistics(0.0, 1.0, ""), "sd").plan.k == 1
    rows, answer = questions.ask_best({"bad": (times, Statistics(0.0, 1.0, ""))}, 1, None, None)
    assert rows[-1]["mode"] == "sd" and rows[0]["tokens/s"] >= rows[1]["tokens/s"]


def test_serving_alone_is_a_request_after_another(fitted):
    """Arrivals are far apart, so a latency is the prompt's pass and the answer's rounds."""
    load = Load(rate=0.01, requests=8, prompt=64, answer=11)
    found = serve(Fixed(1.0, 0.1), Plan("ar"), None, load, 1)
    assert found["latency_p50"] == pytest.approx(11.0) and found["first_token_p50"] == pytest.approx(1.0)
    busy = Load(rate=1.0, requests=60, prompt=64, answer=11, max_batch=2)
    one, four = (serve(Fixed(1.0, 0.1), Plan("ar"), None, busy, n) for n in (1, 4))
    assert one["latency_p90"] > 2 * four["latency_p90"] and one["answers_per_second"] < 0.5 * one["arrivals_per_second"]
    sure_sd = serve(Fixed(1.0, 0.1), Plan("sd", K), sure(1.0, 0), load, 1)
    assert sure_sd["latency_p50"] == pytest.approx(1 + 2 * 1.5)  # ten tokens in two rounds
