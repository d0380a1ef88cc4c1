"""bench.pairs on a tiny pair: its rows, its ratios, and a planted difference."""

import json
import math

import pytest

from bench import pairs
from ssd.runtime.devices.threads import CORES

two_cores = pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")


def run(tiny_folder, tmp_path, *more):
    data, file = tmp_path / "own.jsonl", tmp_path / "pairs.json"
    data.write_text('{"prompt": "once upon a time"}\n{"prompt": "the end"}\n')
    options = ["--target", tiny_folder, "--draft", tiny_folder, "--data", data, "--max-tokens", 16, "--cores", 1]
    code = pairs.main([str(o) for o in (*options, "--json", file, *more)])
    return code, json.loads(file.read_text())["rows"] if file.exists() else []


@two_cores
def test_rows_of_a_tiny_pair(tiny_folder, tmp_path):
    code, rows = run(tiny_folder, tmp_path, "--dtype", "fp32", "--draft-dtype", "q4", "-k", "adaptive,3")
    assert code == 0
    wanted = [("ar", 1, None), ("ar", 2, None)]
    wanted += [("sd", 1, None), ("sd", 2, None), ("sd", 1, 3), ("sd", 2, 3), ("ssd", 1, None), ("ssd", 1, 3)]
    assert [(r["temperature"], r["mode"], r["cores"], r["k"]) for r in rows] == [
        (t, *c) for t in (0, 1) for c in wanted
    ]
    for row in rows:
        assert (row["target"], row["draft"], row["workload"]) == (tiny_folder.name, tiny_folder.name, "own")
        assert (row["target_dtype"], row["draft_dtype"], row["prompts"]) == ("fp32", "q4", 2)
        speed, itl = row["tokens_per_second"], row["itl_ms"]
        assert 0 < speed["min"] <= speed["median"] <= speed["max"] and 0 < itl["p50"] <= itl["p99"]
        assert row["cpu_seconds_per_token"] > 0 and row["over_sd"] > 0 and row["over_sd_all"] > 0
        speculates = row["mode"] != "ar"
        assert row["tokens_per_round"] >= 1 if speculates else row["tokens_per_round"] == 1
        assert (row["hit_rate"] is None) or row["mode"] == "ssd"
        if row["mode"] == "sd":
            assert row["over_sd"] == row["over_sd_all"] == 1
    assert any(row["acceptance_rate"] and row["tokens_per_round"] > 1 for row in rows)


def run_of(seconds: float, tokens=5, **counts):
    counts = {"decode_tokens": tokens, "rounds": tokens, "accepted": [], "proposed": []} | counts
    gaps = [seconds / tokens] * tokens
    return {"decode_seconds": seconds, "decode_tokens": tokens, "gaps": gaps, "cpu_seconds": 2.0, "counts": counts}


def test_ratios_are_those_of_the_same_turns_and_count_the_drafts_core():
    ssd, sd, sd_all, plain = ("ssd", 1, None), ("sd", 1, None), ("sd", 2, None), ("ar", 1, None)
    runs = {
        plain: [run_of(2.0), run_of(2.0), run_of(2.0)],
        sd: [run_of(1.0), run_of(4.0), run_of(100.0)],
        sd_all: [run_of(0.5), run_of(2.0), run_of(50.0)],
        ssd: [run_of(1.0, hits=3, misses=1, rounds=2, accepted=[2, 1], proposed=[3, 1]), run_of(2.0), run_of(25.0)],
    }
    row = pairs.summary(runs, ssd)
    assert row["over_sd"] == 2.0 and row["over_sd_all"] == 1.0 and row["hit_rate"] == 0.75
    assert row["tokens_per_second"] == {"median": 2.5, "min": 0.2, "max": 5.0}
    assert row["tokens_per_round"] == 15 / 12 and row["acceptance_rate"] == 0.75
    assert row["itl_ms"]["p50"] == pytest.approx(400) and row["itl_ms"]["p99"] == pytest.approx(5000)
    assert math.isclose(row["cpu_seconds_per_token"], 6 / 15)
    assert pairs.summary(runs, plain)["over_sd"] == 2.0 and pairs.summary(runs, plain)["hit_rate"] is None
    assert pairs.summary({plain: runs[plain]}, plain)["over_sd"] is None


@two_cores
def test_a_mode_that_answers_otherwise_is_told_of(tiny_folder, tmp_path, monkeypatch, capsys):
    def other(*args, **more):
        runs = take_turns(*args, **more)
        runs["sd", 2, 2][1]["tokens"][5] ^= 1
        return runs

    take_turns = pairs.take_turns
    monkeypatch.setattr(pairs, "take_turns", other)
    code, rows = run(tiny_folder, tmp_path, "--modes", "ar,sd", "-k", "2", "--temperatures", "0")
    assert code == 1 and rows == []
    (line,) = capsys.readouterr().err.strip().splitlines()[-1:]
    assert line == "ssd: ar on 1 cores, k None and sd on 2 cores, k 2 answered turn 1 with different tokens"
