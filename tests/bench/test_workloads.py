"""The prompts that benchmarks decode."""

import pytest

from bench.workloads import PROMPTS, read_workloads


def test_own_prompts_and_broken_files(tmp_path):
    files = sorted(map(str, PROMPTS.glob("*.jsonl")))
    found = read_workloads(files, None)
    assert {w: len(set(p)) for w, p in found.items()} == {"code": 12, "dialogue": 12, "maths": 12}
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"prompt": "x"}\n{"text": "y"}\n')
    with pytest.raises(ValueError, match="bad.jsonl line 2: "):
        read_workloads([str(bad)], None)
    bad.write_text("\n")
    with pytest.raises(ValueError, match="bad.jsonl: holds no prompt"):
        read_workloads([str(bad)], None)
