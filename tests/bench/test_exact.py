"""bench.exact on a tiny pair finds no difference, and finds a planted one."""

import json

import pytest
import tiny_checkpoint
from draft_helpers import write_draft

from bench import exact


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    (folder / "p.jsonl").write_text("\n".join(json.dumps({"prompt": p}) for p in ("hello", "ab" * 30, "x" * 40)))
    return tiny_checkpoint.write(folder / "target"), write_draft(folder / "draft", layers=[1, 2]), folder


def run(pair, *more):
    target, draft, folder = pair
    file = folder / "exact.json"
    options = ["--target", target, "--drafts", f"{draft},ngram", "--data", folder / "p.jsonl", "--max-tokens", 12]
    code = exact.main([str(o) for o in (*options, "--limit", 2, "--threads", 1, "--json", file, *more)])
    return code, json.loads(file.read_text())


def test_no_difference_over_modes_shapes_precisions_batches_and_chunks(pair):
    code, report = run(pair, "--modes", "sd")
    assert code == 0 and report["differences"] == 0 and report["first_difference"] is None
    assert len(report["rows"]) == 2 * 2 * 3 * 2 and {r["chunk"] for r in report["rows"]} == {16, 64, 512}
    for row in report["rows"]:
        kept = row["memory"] in ("warm", "small")
        assert row["compared"] == 2 * 3 * (1 + kept) and (row["cached_prompt_tokens"] > 0) == kept
    assert len({(r["memory"], r["batch"]) for r in report["rows"]}) == 8 and report["tokens"] > 1000
    assert any(r["acceptance_rate"] for r in report["rows"])


def test_plain_decoding_in_other_chunks_batches_and_memories(pair):
    options = ["--dtypes", "bf16", "--batches", "1,3,6", "--chunks", "5,64", "--memory", "warm,scarce,small"]
    code, report = run(pair, "--modes", "ar", "--max-tokens", 40, *options)
    assert code == 0 and report["differences"] == 0
    assert [r["cached_prompt_tokens"] > 0 for r in report["rows"]] == [True, False, True]
    assert [r["preemptions"] > 0 for r in report["rows"]] == [False, True, True]


def test_the_draft_lane_makes_no_difference_either(pair):
    code, report = run(pair, "--modes", "ssd", "--drafts", str(pair[1]), "--shapes", "3,2x2", "--dtypes", "bf16")
    assert code == 0 and report["differences"] == 0 and len(report["rows"]) == 4


def test_a_planted_difference_is_found_and_shown(pair, monkeypatch):
    from ssd.runtime.engine import verify

    coupled = verify.verify_coupled

    def shifted(*args):
        verified = coupled(*args)
        at = verified.accepted.argmax()
        verified.emitted[at, verified.accepted[at]] ^= 1  # the bonus token after the longest path
        return verified

    monkeypatch.setattr(verify, "verify_coupled", shifted)
    code, report = run(pair, "--dtypes", "bf16", "--batches", "1", "--shapes", "3", "--temperatures", "0")
    first = report["first_difference"]
    assert code == 1 and report["differences"] > 0
    assert first["plain"][: first["index"]] == first["got"][: first["index"]] and first["plain"] != first["got"]


def test_penalties_grammars_and_logprobs_make_none_either(pair):
    pytest.importorskip("llguidance")
    options = ("--modes", "sd,ssd", "--dtypes", "bf16", "--shapes", "3,2x2", "--temperatures", "0,1", "--limit", "5")
    code, report = run(pair, *options, "--features")
    assert code == 0 and report["differences"] == 0 and len(report["rows"]) == 12
    assert report["compared"] == 6 * sum(1 + (r["memory"] in ("warm", "small")) for r in report["rows"])
    assert any(r["acceptance_rate"] for r in report["rows"])
