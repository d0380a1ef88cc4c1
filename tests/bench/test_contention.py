"""bench.contention: what it takes from a run of a tiny pair, and that the busy process ends."""

import json

from bench import contention


def test_rows_of_a_tiny_pair(tiny_folder, tmp_path):
    file = tmp_path / "contention.json"
    options = ["--target", tiny_folder, "--draft", tiny_folder, "--max-tokens", 16, "--rounds", 1, "--json", file]
    assert contention.main([str(o) for o in options]) == 0
    rows = json.loads(file.read_text())["rows"]
    assert [(row["mode"], row["dtype"]) for row in rows] == [("ar", "bf16"), ("sd", "bf16"), ("ssd", "bf16")]
    assert all(row["kept"] == row["beside"] / row["alone"] > 0 for row in rows)


def test_the_busy_process_is_busy_and_ends():
    with contention.busy_process() as process:
        assert process.poll() is None
    assert process.poll() is not None
