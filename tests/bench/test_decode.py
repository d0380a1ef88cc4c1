"""bench.decode against a fake peer: what is measured, what is left out, and whether systems agree."""

from argparse import Namespace

import torch

from bench import decode
from bench.agreement import agreement
from bench.peers import SYSTEMS, System

FAKE = "tests.helpers.fake_peer:Peer"


def test_decode_measures_who_is_there(monkeypatch, capsys):
    monkeypatch.setitem(SYSTEMS, "fake", System(FAKE, ("ar", "lookup"), ("bf16", "fp32")))
    monkeypatch.setitem(SYSTEMS, "absent", System(FAKE, ("ar",), ("bf16",)))
    wanted = list(decode.configurations(["fake", "absent"], ["ar"], ["ar"], ["bf16"]))
    assert wanted == [("fake", "ar", "bf16"), ("absent", "ar", "bf16")]
    wanted.insert(1, ("fake", "lookup", "bf16"))
    args = Namespace(max_tokens=6, repeats=2, prefill=9)
    workloads = {"one": [[1, 2], [3]], "two": [[4]]}
    options = {"absent": {"refuse": "it is not installed"}}
    found = decode.measure(1, wanted, "slow", options, workloads, args)
    rows = found["rows"]
    assert "absent ar bf16 left out: FileNotFoundError: it is not installed" in capsys.readouterr().err
    assert [(r["system"], r["mode"], r["workload"]) for r in rows] == [
        ("fake", mode, workload) for workload in workloads for mode in ("ar", "lookup")
    ]
    for row in rows:
        rate = row["tokens_per_second"]
        assert row["precision"] == "bf16" and row["cores"] == 1 and row["peak_bytes"] > 1 << 20
        assert 0 < rate["min"] <= rate["median"] <= rate["max"] < 250  # a token takes at least 4 ms
        assert 0.02 <= row["decode_seconds"]["min"] <= row["decode_seconds"]["max"]
        assert 0.024 <= row["total_seconds"]["median"] and 0.004 <= row["prefill_seconds"]["median"]
        assert row["speed_up"] == 1.0 if row["mode"] == "ar" else row["speed_up"] > 0
    pair = {"cores": 1, "precision": "bf16", "a": "fake ar", "b": "fake lookup", "modes": "ar, lookup"}
    assert found["agreement"] == [{**pair, "prompts": 3, "same": 1.0, "same_tokens": 1.0}]
    assert [p["prompt_tokens"] for p in found["prefill"]] == [9, 9] and found["costs"] == []


def test_costs_are_measured_beside_the_runs(monkeypatch):
    monkeypatch.setitem(SYSTEMS, "ssd", System(FAKE, ("ar", "sd"), ("bf16", "fp32")))
    wanted = list(decode.configurations(["ssd"], ["ar", "sd"], [], None))
    found = decode.measure(1, wanted, "slow", {}, {"one": [[1], [2]]}, Namespace(max_tokens=6, repeats=1, prefill=None))
    assert found["costs"] == [
        {"precision": precision, "cores": 1, "workload": "one", "target_together": {"1": step}}
        for precision, step in (("bf16", 0.004), ("fp32", 0.002))
    ]
    assert decode.mean([{"a": {"1": 1.0, "5": 2.0}}, {"a": {"1": 3.0, "5": 2.0}}]) == {"a": {"1": 2.0, "5": 2.0}}


def test_what_fails_its_warm_up_or_needs_a_gpu_is_left_out(monkeypatch, capsys):
    monkeypatch.setitem(SYSTEMS, "fake", System(FAKE, ("ar",), ("bf16",)))
    monkeypatch.setitem(SYSTEMS, "far", System(FAKE, ("ar",), ("bf16",), gpu=True))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    args = Namespace(max_tokens=6, repeats=1, prefill=None)
    wanted = [("fake", "ar", "bf16"), ("far", "ar", "bf16")]
    found = decode.measure(1, wanted, "slow", {}, {"one": [[]]}, args)  # the fake raises because there is no prompt
    assert found == {"rows": [], "agreement": [], "prefill": [], "costs": []}
    error = capsys.readouterr().err
    assert "far ar bf16 left out: it needs a GPU" in error and "fake ar bf16 left out: IndexError" in error


def test_agreement_is_by_precision():
    texts = {
        ("a", "ar", "bf16"): [[1, 2, 3, 4], [2, 2]],
        ("b", "ar", "bf16"): [[1, 2, 3, 9], [2, 2]],
        ("b", "ar", "fp32"): [[9], [9]],
    }
    pair = {"precision": "bf16", "a": "a ar", "b": "b ar", "modes": "ar, ar", "prompts": 2}
    assert agreement(texts) == [{**pair, "same": 0.5, "same_tokens": 0.875}]


def test_long_prompts_have_the_length_and_differ():
    prompts = decode.long_prompts({"w": [[1, 2, 3], list(range(40))]}, 100)
    assert {len(p) for p in prompts} == {100} and len({tuple(p) for p in prompts}) == len(prompts)
