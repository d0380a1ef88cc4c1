"""The fit to published speeds, and the published rows that it has to predict."""

import pytest

from ssd.simulate import announcement, formula, paper
from ssd.simulate.fit import Fit, fit, plain_and_speculative, unpack
from ssd.simulate.models import MODELS
from ssd.simulate.published import PAIRS, SPEEDS


def test_fit_finds_the_constants_that_made_the_data(fitted):
    x = (0.7, 3e-3, 0.9e-3, 2.2, 1.1, 1.6, 2.6, -0.4, 0.8)
    constants, acceptance = unpack(x)
    values = plain_and_speculative(constants, acceptance)
    speeds = {
        name: {"ar": (values[5 * i],) * 4, "sd": tuple(values[5 * i + 1 : 5 * i + 5])} for i, name in enumerate(PAIRS)
    }
    known = Fit(constants, acceptance, x[-2], x[-1], 0.9)
    pair = PAIRS["llama"]
    speeds["llama"]["ssd"] = tuple(
        formula.ssd(known.times(pair), known.outcomes("llama", w, pair.k_ssd, 3), pair.k_ssd, 24, stalls=True)
        for w in range(4)
    )
    found = fit(speeds, dict(zip(("verify", "draft"), values[-2:], strict=True)))
    assert found.constants.bandwidth == pytest.approx(0.7, rel=1e-3)
    assert found.constants.host == pytest.approx(3e-3, rel=1e-3)
    assert found.constants.draft_host == pytest.approx(0.9e-3, rel=1e-3)
    assert found.exponent == pytest.approx(0.9, rel=1e-3)
    for name in PAIRS:
        assert found.acceptance[name] == pytest.approx(acceptance[name], rel=1e-3)


def test_published_rows_of_the_other_pair_are_predicted(fitted):
    rows = paper.rows(fitted, rounds=400)
    keys = {"source", "pair", "method", "workload", "published", "predicted", "error"}
    assert len(rows) == 2 * (1 + 4 + 4) + 4 + 5 and all(keys <= set(r) for r in rows)
    for r in rows:
        assert r["error"] == pytest.approx(r["predicted"] / r["published"] - 1)
    # by the formulas, which have no noise: a bad fit, or a law that does not carry over, shows here
    of = {(r["pair"], r["method"], r["workload"]): r["formula"] / r["published"] - 1 for r in rows}
    qwen = [e for (pair, method, _), e in of.items() if "Qwen" in pair and "SSD" in method]
    assert len(qwen) == 8 and max(map(abs, qwen)) < 0.1
    assert max(abs(e) for (_, method, _), e in of.items() if method.startswith(("AR", "SD"))) < 0.02
    assert SPEEDS["qwen"]["ssd"] not in vars(fitted).values()


def test_announcement_rows(fitted):
    rows = {(r["quantity"], r["workload"]): r for r in announcement.rows(fitted, rounds=300)}
    r = rows["SSD / SD", "HumanEval"]
    assert r["published"] == pytest.approx(61.2 / 28.7)
    # hiding all drafting and transfer gives at most 1 / 0.55, so the announced ratio cannot come from that alone
    assert r["from_its_shares"] < 1 / 0.55 < r["published"]
    shares = [r["from_constants"] for (q, _), r in rows.items() if q.startswith("share of the time")]
    assert len(shares) == 3 and sum(shares) == pytest.approx(1)
    all_branches = rows["more computation with 4 branches in all, of both models", "HumanEval"]
    target, draft = (2 * MODELS[m].weights for m in ("llama-3.1-70b", "llama-3.2-1b"))
    assert all_branches["from_constants"] == pytest.approx((7 + 18) * draft / (7 * target + 6 * draft), rel=0.02)
