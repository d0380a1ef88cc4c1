"""Answers of `python -m ssd.run`: text, JSON, files of prompts, speculation."""

import json

import pytest
from run_helpers import call

from ssd.cli.command import threads


def test_answer_json_and_summary(tiny, tmp_path, capsys):
    file = tmp_path / "out.json"
    code, out, err = call(
        capsys, "héllo", "--target", tiny, "--max-tokens", 9, "--ignore-eos", "--mode", "ar", "--json", file
    )
    assert code == 0
    report = json.loads(file.read_text())
    assert set(report) == {"mode", "config", "outputs", "stats"} and report["mode"] == "ar"
    (output,) = report["outputs"]
    assert set(output) == {"prompt", "text", "token_ids", "finish_reason"}
    assert output["prompt"] == "héllo" and output["text"] + "\n" == out
    assert len(output["token_ids"]) == 9 and output["finish_reason"] == "length"
    assert report["config"]["dtype"] == "bf16" and report["config"]["max_tokens"] == 9
    assert report["config"]["branches"] == 24 and report["config"]["fan_out"] is None
    stats = report["stats"]
    assert stats["rounds"] == 8 and stats["decode_tokens"] == 8 and stats["mean_accepted_length"] == 1
    assert stats["prefill_tokens"] == len(b"user\nh\xc3\xa9llo\nassistant\n") + 3
    for key in (
        "tokens_per_second prefill_seconds decode_seconds acceptance_rate acceptance_per_position hit_rate "
        "recoveries verify_ms draft_ms wait_ms overhead_fraction bandwidth_fraction"
    ).split():
        assert key in stats
    assert stats["bandwidth_fraction"]["verify"] > 0 and stats["bandwidth_fraction"]["draft"] is None
    assert "9 tokens" in err and err.count("\n") == 1


def test_same_seed_same_text_and_dtypes(tiny, capsys):
    arguments = ("hi", "--target", tiny, "--max-tokens", 12, "--temperature", 1.0, "--ignore-eos", "--seed")
    first = call(capsys, *arguments, 1)[1]
    assert call(capsys, *arguments, 1)[1] == first != call(capsys, *arguments, 2)[1]
    for dtype in ("fp32", "int8"):
        assert call(capsys, *arguments, 1, "--dtype", dtype)[0] == 0


def test_raw_leaves_the_template_out(tiny, tmp_path, capsys):
    file = tmp_path / "out.json"
    call(capsys, "abc", "--target", tiny, "--raw", "--max-tokens", 1, "--json", file)
    assert json.loads(file.read_text())["stats"]["prefill_tokens"] == 3


def test_file_of_prompts_equals_each_alone(tiny, tmp_path, capsys):
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out.json"
    texts = ["one", "zwei", "三", "four four four"]
    prompts.write_text("\n\n".join(json.dumps({"prompt": t, "id": i}) for i, t in enumerate(texts)) + "\n")
    options = ("--target", tiny, "--max-tokens", 10, "--ignore-eos")
    code, stdout, _ = call(capsys, "--prompts", prompts, "--batch", 3, "--json", out, *options)
    assert code == 0
    outputs = json.loads(out.read_text())["outputs"]
    assert [o["prompt"] for o in outputs] == texts
    assert [json.loads(line)["text"] for line in stdout.splitlines()] == [o["text"] for o in outputs]
    assert [o["text"] + "\n" for o in outputs] == [call(capsys, t, *options)[1] for t in texts]


def test_prompts_that_begin_alike_and_too_little_memory(tiny, tmp_path, capsys):
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out.json"
    texts = ["the same beginning of all, and then " + t for t in ("one", "two", "three", "x" * 30)]
    prompts.write_text("\n".join(json.dumps({"prompt": t}) for t in texts))
    options = ("--prompts", prompts, "--target", tiny, "--max-tokens", 40, "--ignore-eos", "--json", out)
    code, plain, err = call(capsys, *options, "--no-prefix-cache", "--mode", "ar")
    report = json.loads(out.read_text())
    assert code == 0 and not report["config"]["prefix_caching"]
    assert report["stats"]["cached_prompt_tokens"] == 0 and "known" not in err and "preemption" not in err
    code, small, err = call(capsys, *options, "--kv-tokens", 130)
    report = json.loads(out.read_text())
    assert (code, small) == (0, plain) and report["config"]["prefix_caching"]
    stats = report["stats"]
    assert stats["cached_prompt_tokens"] >= 3 * 32 and stats["preemptions"] > 0
    assert f"{stats['cached_prompt_tokens']} more were known; {stats['preemptions']} preemptions" in err


def test_stop(tiny, capsys):
    options = ("hi", "--target", tiny, "--max-tokens", 30, "--ignore-eos", "--temperature", 1)
    text = call(capsys, *options)[1]
    cut = text[10:12]
    assert call(capsys, *options, "--stop", cut)[1] == text[: text.index(cut)] + "\n"


def test_threads():
    assert threads(None) is None and threads("3") == 3
    assert threads("0,2") == [0, 2] and threads("4-6,9") == [4, 5, 6, 9] and threads("1-1") == [1]


@pytest.mark.parametrize("more", [("--mode", "sd"), ("--mode", "ssd", "-k", 3), ("--mode", "sd", "--tree-width", 3)])
def test_speculation_says_the_same_and_tells_what_it_did(more, tiny, tmp_path, capsys):
    options = ("once upon", "--target", tiny, "--max-tokens", 40, "--ignore-eos", "--temperature", 0.8)
    _, plain, _ = call(capsys, *options)
    file, trace = tmp_path / "out.json", tmp_path / "trace.json"
    code, out, err = call(capsys, *options, "--draft", tiny, *more, "--json", file, "--trace", trace)
    assert (code, out) == (0, plain) and "tokens a round" in err
    report = json.loads(file.read_text())
    stats = report["stats"]
    assert report["mode"] == more[1] and report["config"]["draft"] == str(tiny)
    assert stats["mean_accepted_length"] * stats["rounds"] == pytest.approx(39)
    assert (stats["hit_rate"] is None) == (more[1] == "sd")
    events = json.loads(trace.read_text())["traceEvents"]
    names = {e["name"] for e in events}
    assert {"thread_name", "forward", "verify", "decode pass"} <= names
    assert all(e["dur"] >= 0 for e in events if e["ph"] == "X")
    if more[1] == "ssd":
        assert names & {"hit", "miss"}


def test_ngram_needs_no_draft_model(tiny, capsys):
    options = ("ab" * 30, "--target", tiny, "--max-tokens", 30, "--ignore-eos")
    assert call(capsys, *options)[1] == call(capsys, *options, "--mode", "sd", "--draft", "ngram", "-k", 4)[1]


def test_show_colours_what_was_speculated(tiny, capsys):
    options = ("hi", "--target", tiny, "--max-tokens", 20, "--ignore-eos")
    _, plain, _ = call(capsys, *options)
    _, shown, _ = call(capsys, *options, "--mode", "sd", "--draft", tiny, "-k", 3, "--show")
    assert "\033[36m" in shown and shown.replace("\033[36m", "").replace("\033[0m", "") == plain
