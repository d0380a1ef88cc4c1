"""bench.operators with tiny shapes on the CPU."""

import json

import pytest

from bench import operators
from bench.cases import linear


def run(tmp_path):
    file = tmp_path / "o.json"
    code = operators.main(["--device", "cpu", "--seconds", "0.01", "--json", str(file)])
    return code, json.loads(file.read_text())["rows"]


def test_every_kernel_is_right_and_has_a_ratio(tmp_path):
    code, rows = run(tmp_path)
    assert code == 0 and [row["op"] for row in rows] == ["linear"] * 12 + ["tree_attention"] * 3
    for row in rows:
        assert row["check"] and row["microseconds"] > 0 and row["refused"] == {}
        (ratio,) = row["baselines"].values()
        assert ratio > 0


def test_a_wrong_kernel_fails(tmp_path, monkeypatch):
    right = linear.linear
    monkeypatch.setattr(linear, "linear", lambda x, packed, n: right(x, packed, n) * 1.05)
    code, rows = run(tmp_path)
    assert code == 1 and [row["check"] for row in rows] == [False] * 12 + [True] * 3
    assert all(row["baselines"] == {} for row in rows[:12])


def test_a_gpu_that_is_not_there_is_one_sentence(tmp_path):
    with pytest.raises(ValueError, match="^device: got 'cuda:99', but this torch sees "):
        operators.main(["--device", "cuda:99"])
