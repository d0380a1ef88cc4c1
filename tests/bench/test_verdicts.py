"""Verdicts over results written by hand: what is right is told, what is wrong is found."""

import json
import re
from functools import partial

import pytest

from bench import verdicts
from bench.verdicts import Wrong


def written(folder, files):
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value))


def ran(tokens, lost=0, **more):
    stats = {"tokens_per_second": 12.34, "acceptance_rate": 0.5, "hit_rate": None}
    stats |= {"recoveries": {"rollback": {"count": lost}}} | more
    return {"outputs": [{"token_ids": tokens}], "stats": stats}


def row(op="linear", check=True, refused=(), **baselines):
    return {"op": op, "backend": "triton", "shape": "s", "check": check, "baselines": baselines,
            "refused": dict.fromkeys(refused, "why")}  # fmt: skip


AR = {"reference": ran([1, 2, 3, 4, 5]), "ar": ran([1, 2, 3, 4, 9])}
HIT = {"hit_rate": 0.5, "hit_rate_realtime": None}
MADE_UP = {"mode": "ar", "tokens_per_second": 5.0, "speedup": 1.0, "gb_per_s": 3.2, "hit_rate": None}
MADE_UP |= {"first_seconds": 2.0, "right": True, "rollbacks": 0}
ssd = partial(verdicts.speculated, mode="ssd")


@pytest.mark.parametrize(
    "verdict,files,told",
    [
        (verdicts.plain, AR, "5 tokens, 12.3 tokens/s, the first 4 as on the CPU"),
        (
            ssd,
            AR | {"ssd": ran([1, 2, 3, 4, 9])},
            "the tokens of ar, 5 tokens, 12.3 tokens/s, acceptance rate 0.50, hit",
        ),
        (ssd, AR | {"ssd": ran([1, 2, 3, 4, 9], mode="sd")}, "the tokens of ar, .* hit rate none, chose sd"),
        (
            verdicts.exact,
            {"exact": {"compared": 3, "tokens": 9, "differences": 0}},
            "3 answers of 9 tokens compared, 0",
        ),
        (verdicts.hit_rate, {"hit_rate": {"rows": [HIT]}}, "hit rate 0.50 in lockstep, none in real time"),
        (
            verdicts.operators,
            {"operators": {"rows": [row(a=x) for x in (1.0, 2.0, 4.0)]}},
            "3 right; .*against a 2.00",
        ),
        (
            verdicts.operators,
            {"operators": {"rows": [row(refused=["peer"])], "missing": ["x"]}},
            ".* peer refused, x not inst",
        ),
        (verdicts.synthetic, {"synthetic": {"rows": [MADE_UP]}}, r"ar 5.0 tokens/s \(1.00, 3 GB/s, .* first run 2 s"),
    ],
)
def test_what_is_right_is_told(tmp_path, verdict, files, told):
    written(tmp_path, files)
    assert re.match(told, verdict(tmp_path))


@pytest.mark.parametrize(
    "verdict,files,wrong",
    [
        (verdicts.plain, {}, "ar.json was not written"),
        (verdicts.plain, AR | {"ar": ran([1, 7])}, "the first 1 as on the CPU"),
        (verdicts.plain, AR | {"ar": ran([])}, "no tokens"),
        (ssd, AR | {"ssd": ran([1, 2, 8, 4, 9])}, "token 2 is not that of ar"),
        (ssd, AR | {"ssd": ran([1, 2, 3])}, "token 3 is not that of ar"),
        (ssd, AR | {"ssd": ran([1, 2, 3, 4, 9], lost=3)}, "the draft lane was given up 3 times"),
        (
            verdicts.exact,
            {"exact": {"compared": 3, "tokens": 9, "differences": 1}},
            "3 answers of 9 tokens compared, 1",
        ),
        (verdicts.exact, {"exact": {"compared": 0, "tokens": 0, "differences": 0}}, "0 answers"),
        (verdicts.hit_rate, {"hit_rate": {"rows": [HIT | {"hit_rate": 0.0}]}}, "hit rate 0.00 in lockstep"),
        (verdicts.operators, {"operators": {"rows": []}}, "0 of 0 kernels are wrong"),
        (verdicts.operators, {"operators": {"rows": [row(), row(check=False)]}}, "1 of 2 .*: linear triton s: wrong"),
        (
            verdicts.operators,
            {"operators": {"rows": [{"op": "a", "backend": "b", "shape": "s", "error": "no"}]}},
            "s: no",
        ),
        (verdicts.synthetic, {"synthetic": {"rows": [MADE_UP | {"right": False}]}}, "a token is wrong; ar 5.0"),
        (verdicts.synthetic, {"synthetic": {"rows": [MADE_UP | {"rollbacks": 2}]}}, "the draft lane was given up; ar"),
    ],
)
def test_what_is_wrong_is_found(tmp_path, verdict, files, wrong):
    written(tmp_path, files)
    with pytest.raises(Wrong, match=wrong):
        verdict(tmp_path)


@pytest.mark.parametrize(
    "counts,wrong",
    [
        ((9, 0, 0, 4), None),
        ((9, 1, 0, 4), "4 passed, 1 failed"),
        ((9, 0, 1, 0), "1 failed"),
        ((4, 0, 0, 4), "0 passed"),
    ],
)
def test_tests_pass_if_some_passed_and_none_failed(tmp_path, counts, wrong):
    names = ("tests", "failures", "errors", "skipped")
    given = " ".join(f'{name}="{n}"' for name, n in zip(names, counts, strict=True))
    (tmp_path / "t.xml").write_text(f"<testsuites><testsuite {given}></testsuite></testsuites>")
    if wrong is None:
        assert verdicts.tests(tmp_path, "t") == "5 passed, 0 failed, 4 skipped"
    else:
        with pytest.raises(Wrong, match=wrong):
            verdicts.tests(tmp_path, "t")


def test_tests_without_a_report_have_failed(tmp_path):
    with pytest.raises(Wrong, match="t.xml was not written"):
        verdicts.tests(tmp_path, "t")
