"""bench.theory: the formula, and its terms from a run of a tiny pair."""

import json

import pytest

from bench import theory
from ssd.runtime.devices.threads import CORES


def test_theorem():
    assert theory.theorem_7(1.0, 3.0, 1.0, 0.5, 9.0) == 3.0  # every outcome is prepared for, and the draft is hidden
    assert theory.theorem_7(1.0, 3.0, 1.0, 2.0, 9.0) == 1.5  # the draft takes two verifications
    assert theory.theorem_7(0.0, 9.0, 2.0, 0.5, 0.25) == pytest.approx(2 / 1.25)
    assert theory.theorem_7(0.5, 3.0, 2.0, 0.5, 0.2) == pytest.approx(2.5 / 1.1)


@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
def test_rows_of_a_tiny_pair(tiny_folder, tmp_path):
    data, file = tmp_path / "own.jsonl", tmp_path / "theory.json"
    data.write_text('{"prompt": "once upon a time"}\n{"prompt": "the end"}\n')
    options = ["--target", tiny_folder, "--draft", tiny_folder, "--data", data, "--max-tokens", 24, "--json", file]
    assert theory.main([str(o) for o in (*options, "--modes", "ar,sd,ssd")]) == 0
    (row,) = json.loads(file.read_text())["rows"]
    assert row["prompts"] == 2 and set(row["tokens_per_second"]) == {"ar", "sd", "ssd"}
    assert 0 <= row["hit_rate"] <= 1 <= row["miss_length"] and row["verify_ms"] > 0 and row["predicted"] > 0
    assert row["error"] > -1 and 0 <= row["wait_share"] < 1
