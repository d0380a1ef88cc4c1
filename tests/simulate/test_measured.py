"""Speeds that follow from measured costs of passes, in a file whose answer is known."""

import json

import pytest
from simulate_helpers import call


def bench_file(tmp_path):
    """A file of bench.decode where a pass of n rows takes 10 + n ms and a pass of the draft 1 ms, with an overhead of
    0.5 ms, or 0.9 ms for sd."""
    line = {str(n): (10 + n) / 1e3 for n in (1, 5, 12)}
    flat = {str(n): 1e-3 for n in (1, 5, 12)}
    costs = {"precision": "bf16", "cores": 2, "workload": "code", "target_together": line, "target_apart": line}
    costs |= {"draft_together": flat, "draft_apart": flat}
    ar = {"decode_passes": 100, "decode_tokens": 100, "decode_forward_seconds": 1.1, "decode_seconds": 1.15}
    ar["decode_draft_seconds"] = 0.0
    # half of the rounds verify three tokens, drafted in three passes, and accept one; the other half verify none
    sd = {"shapes": {"3 1": 50, "0 0": 50}, "draft_passes": 150, "draft_rows": 150, "decode_tokens": 150}
    sd |= {"decode_draft_seconds": 50 * 3e-3, "decode_passes": 100}
    sd["decode_forward_seconds"] = 50 * 14e-3 + 50 * 11e-3
    sd["decode_seconds"] = sd["decode_draft_seconds"] + sd["decode_forward_seconds"] + 100 * 0.9e-3
    # four tokens are verified and accepted; half of the outcomes hit, and after the others four passes draft a chain,
    # which start when the running pass of 1 ms is over; after 15.5 ms, half of it is left
    ssd = {"shapes": {"4 4": 100}, "hits": 50, "misses": 50, "retries": 50, "wait_seconds": 50 * 4.5 / 1e3}
    ssd |= {"draft_passes": 100, "draft_rows": 800, "decode_passes": 100, "decode_tokens": 500}
    ssd |= {"decode_forward_seconds": 1.5, "decode_draft_seconds": ssd["wait_seconds"]}
    ssd["decode_seconds"] = 100 * 15.5 / 1e3 + ssd["wait_seconds"]
    common = {"system": "ssd", "precision": "bf16", "cores": 2, "workload": "code"}
    rows = [common | {"mode": m, "counts": c} for m, c in (("ar", ar), ("sd", sd), ("ssd", ssd))]
    file = tmp_path / "decode.json"
    file.write_text(json.dumps({"rows": rows, "costs": [costs]}))
    return file


def test_measured_costs_give_the_measured_speeds(tmp_path, capsys):
    out = tmp_path / "out.json"
    code, text, _ = call(capsys, "--measured", bench_file(tmp_path), "--rounds", 2000, "--json", out)
    rows = {r["mode"]: r for r in json.loads(out.read_text())["rows"]}
    assert code == 0 and "Error by mode" in text
    assert rows["ar"]["predicted"] == pytest.approx(rows["ar"]["measured"]) == pytest.approx(1000 / 11.5)
    assert rows["sd"]["error"] == pytest.approx(0, abs=0.03)
    assert rows["ssd"]["error"] == pytest.approx(0, abs=0.03) and rows["ssd"]["hit_rate"] == pytest.approx(
        0.5, abs=0.04
    )
    for mode in ("sd", "ssd"):
        assert rows[mode]["wait_ms"] == pytest.approx(rows[mode]["wait_ms_measured"], rel=0.25)
