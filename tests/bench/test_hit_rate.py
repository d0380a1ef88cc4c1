"""bench.hit_rate on a tiny pair."""

import json

import tiny_checkpoint
from draft_helpers import write_draft

from bench import hit_rate


def test_rows_and_what_they_say(tmp_path):
    target, draft = tiny_checkpoint.write(tmp_path / "target"), write_draft(tmp_path / "draft", layers=[1, 2])
    (tmp_path / "p.jsonl").write_text(json.dumps({"prompt": "once upon a time"}))
    common = ["--target", target, "--data", tmp_path / "p.jsonl", "--max-tokens", 40, "--temperatures", "0,1"]
    common += ["--json", tmp_path / "h.json", "--fan-out", "1,4", "-k", 2]

    def rows(*more):
        assert hit_rate.main([str(x) for x in (*common, *more)]) == 0
        return json.loads((tmp_path / "h.json").read_text())["rows"]

    found = rows("--draft", draft, "--verify", "coupled,rejection,saguaro")
    assert len(found) == 2 * 2 * 3 and all(0 <= r["hit_rate"] <= 1 and r["accepted_length"] >= 1 for r in found)
    assert all(0 <= r["hit_rate_realtime"] <= 1 for r in found)
    own = rows("--draft", target, "--draft-dtype", "bf16", "--no-realtime")  # the target as its own draft always hits
    assert [r["hit_rate"] for r in own] == [1.0] * 4 and own[0]["hit_rate_realtime"] is None
    narrow, wide = own[0]["draft_overhead"], own[1]["draft_overhead"]
    assert 1 < narrow < wide
