import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from functools import partial

import pytest
import tiny_checkpoint
import torch
from run_helpers import call, refused
from safetensors.torch import load_file, save_file

from ssd.cli.command import BadInput, threads
from ssd.model import hub
from ssd.run import DEFAULT_TARGET, read_prompts


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return tiny_checkpoint.write(tmp_path_factory.mktemp("tiny"))


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


@pytest.mark.parametrize(
    "arguments,message",
    [
        ([], "give one prompt, or --prompts FILE"),
        (["hi", "--prompts", "x.jsonl"], "give one prompt, or --prompts FILE"),
        ([""], "prompt: is empty"),
        (["  "], "prompt: is empty"),
        (["hi", "--mode", "sd", "--draft", "/no/such/draft"], "no such folder: /no/such/draft"),
        (["hi", "--mode", "sd"], "draft: none comes with"),
        (["hi", "--mode", "ssd", "--draft", "ngram"], "draft: got ngram, wanted a draft model"),
        (["hi", "--mode", "ssd", "--verify", "rejection", "--tree-width", "2"], "tree_width: got 2"),
        (["hi", "--mode", "ssd", "-k", "50"], "branches: got 24"),
        (["hi", "--mode", "ssd", "--branches", "0"], "branches: got 0"),
        (["hi", "--mode", "ssd", "--draft-threads", "x"], "--draft-threads: got 'x'"),
        (["hi", "--mode", "sd", "--draft", "ngram", "-k", "0"], "k: got 0"),
        (["hi", "--mode", "sd", "--draft", "ngram", "--saguaro", "0.5"], "saguaro: is of rejection sampling"),
        (["hi", "--trace", "/no/such/folder/t.json"], "--trace: cannot write"),
        (["hi", "--mode", "magic"], "invalid choice: 'magic'"),
        (["hi", "--unknown"], "unrecognized arguments: --unknown"),
        (["hi", "--max-tokens", "0"], "max_tokens: got 0"),
        (["hi", "--max-tokens", "many"], "invalid int value: 'many'"),
        (["hi", "--temperature", "-1"], "temperature: got -1.0"),
        (["hi", "--temperature", "nan"], "temperature: got nan"),
        (["hi", "--top-p", "0"], "top_p: got 0.0"),
        (["hi", "--top-p", "1.5"], "top_p: got 1.5"),
        (["hi", "--top-k", "-3"], "top_k: got -3"),
        (["hi", "--min-p", "1"], "min_p: got 1.0"),
        (["hi", "--seed", "-1"], "seed: got -1"),
        (["hi", "--stop", ""], "stop: got an empty string"),
        (["hi", "--batch", "0"], "--batch: got 0"),
        (["hi", "--threads", "7-4"], "--threads: got '7-4'"),
        (["hi", "--threads", "0-0-0"], "--threads: got '0-0-0'"),
        (["hi", "--mode", "ssd", "--draft-threads", "99999"], "draft_threads: got 99999"),
        (["hi", "--mode", "ar", "-k", "3"], "-k: is of speculation"),
        (["hi", "--mode", "ar", "--draft", "ngram"], "--draft: is of speculation"),
        (["hi", "--mode", "ar", "--verify", "rejection"], "--verify: is of speculation"),
        (["hi", "--mode", "ar", "--fan-out", "2"], "--fan-out: is of speculation"),
        (["hi", "--mode", "ar", "--branches", "8"], "--branches: is of speculation"),
        (["hi", "--mode", "sd", "--branches", "8"], "--branches: is of a lane of its own, wanted --mode ssd or auto"),
        (["hi", "--mode", "sd", "--fan-out", "2"], "--fan-out: is of a lane of its own, wanted --mode ssd or auto"),
        (["hi", "--mode", "sd", "--backup-draft", "large"], "--backup-draft: is of a lane of its own"),
        (["hi", "--mode", "sd", "--draft-threads", "1"], "--draft-threads: is of a lane of its own"),
        (["hi", "--mode", "ssd", "--fan-out", "2", "--branches", "8"], "branches: got 8 with fan_out 2, wanted one"),
        (["hi", "--json", ""], "--json: got an empty text"),
        (["hi", "--draft", ""], "--draft: got an empty text"),
        (["hi", "--target", ""], "--target: got an empty text"),
        (["hi", "--json-schema", ""], "--json-schema: got an empty text"),
        (["hi", "--json", "/proc/out.json"], "--json: cannot write /proc/out.json"),
        (["hi", "--trace", "/proc/out.json"], "--trace: cannot write /proc/out.json"),
        (["hi", "--kv-tokens", "0"], "kv_tokens: got 0"),
        (["hi" * 40, "--kv-tokens", "64"], "wanted at most 63 in a KV cache of 64"),
        (["hi", "--threads", "0"], "threads: got 0"),
        (["hi", "--threads", "99999"], "threads: got 99999"),
        (["hi", "--threads", "4-x"], "--threads: got '4-x'"),
        (["hi", "--target", "/no/such/folder"], "no such folder: /no/such/folder"),
        (["hi", "--json", "/no/such/folder/out.json"], "--json: cannot write"),
        (["--prompts", "/no/such/file"], "/no/such/file: No such file or directory"),
        (["\udcff"], "not UTF-8"),
    ],
)
def test_bad_options(arguments, message, tiny, capsys):
    target = [] if "--target" in arguments else ["--target", tiny]
    assert message in refused(capsys, *arguments, *target)


@pytest.mark.parametrize(
    "line,message",
    [
        ('{"prompt": "a"', "line 3: is not a JSON object"),
        ('"prompt"', "line 3: is not a JSON object"),
        ('{"text": "a"}', "line 3: got a prompt of None"),
        ('{"prompt": 5}', "line 3: got a prompt of 5"),
        ('{"prompt": ""}', "line 3: is empty"),
        ("[" * 100000, "line 3: is not a JSON object"),
        (b"\xff\xfe", "line 3: is not a JSON object"),
        (json.dumps({"prompt": "long " * 60}), "line 3: got 3"),
    ],
)
def test_broken_line_of_a_prompts_file(line, message, tiny, tmp_path, capsys):
    file = tmp_path / "prompts.jsonl"
    file.write_bytes(b'{"prompt": "fine"}\n\n' + (line if isinstance(line, bytes) else line.encode()) + b"\n")
    assert message in refused(capsys, "--prompts", file, "--target", tiny)


def test_prompts_file_without_a_prompt(tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n \n")
    with pytest.raises(BadInput, match="holds no prompt"):
        read_prompts(str(file))


def test_bad_models(tiny, tmp_path, capsys):
    def broken(name, **changes):
        return tiny_checkpoint.write(tmp_path / name, **changes)

    assert "MambaForCausalLM" in refused(
        capsys, "hi", "--target", broken("arch", architectures=["MambaForCausalLM"], model_type="mamba")
    )
    folder = broken("tensors")
    path, name = folder / "model.safetensors", "model.layers.1.mlp.up_proj.weight"
    good = load_file(path)
    for change, message in [
        ({name: None}, name),
        ({name: torch.zeros(3, 4)}, f"tensor {name}"),
        ({name: torch.full_like(good[name], torch.nan)}, "NaN"),
    ]:
        save_file({k: v for k, v in (good | change).items() if v is not None}, path)
        assert message in refused(capsys, "hi", "--target", folder)
    path.write_bytes((tiny / "model.safetensors").read_bytes()[:-100])
    assert "model.safetensors" in refused(capsys, "hi", "--target", folder)
    (tiny / "tokenizer.json").rename(tiny / "gone")
    assert "tokenizer.json" in refused(capsys, "hi", "--target", tiny)
    (tiny / "gone").rename(tiny / "tokenizer.json")


def test_prompt_longer_than_the_context(tiny, capsys):
    assert "got 276 tokens, wanted at most 255" in refused(capsys, "x" * 257, "--target", tiny)


def test_a_file_that_two_options_name(tiny, tmp_path, capsys):
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out.json"
    prompts.write_text('{"prompt": "a"}')
    both = ("--target", tiny, "--json", out, "--trace", tmp_path / "." / "out.json")
    assert "--trace: cannot write" in refused(capsys, "hi", *both) and not out.exists()
    assert "another option" in refused(capsys, "--prompts", prompts, "--target", tiny, "--json", prompts)
    assert prompts.read_text() == '{"prompt": "a"}'
    assert "--show: colours" in refused(capsys, "--prompts", prompts, "--target", tiny, "--show")
    ours = ("--json", "/dev/null", "--trace", "/dev/null")
    assert call(capsys, "hi", "--target", tiny, "--max-tokens", 2, *ours)[0] == 0


def test_a_refusal_leaves_files_as_they_were(tiny, tmp_path, capsys):
    old, new, link = tmp_path / "old.json", tmp_path / "new.json", tmp_path / "link.json"
    old.write_text("kept")
    link.symlink_to(tmp_path / "gone.json")
    for file in (old, new, link):
        refused(capsys, "hi", "--target", tiny, "--temperature", "-1", "--json", file)
    assert old.read_text() == "kept" and not new.exists() and link.is_symlink()


def test_no_room_on_disk(tiny, capsys):
    code, out, err = call(capsys, "hi", "--target", tiny, "--max-tokens", 2, "--json", "/dev/full")
    assert (
        code == 2
        and out
        and "--json: cannot write /dev/full: No space left on device" in err
        and "Traceback" not in err
    )


def test_threads():
    assert threads(None) is None and threads("3") == 3
    assert threads("0,2") == [0, 2] and threads("4-6,9") == [4, 5, 6, 9] and threads("1-1") == [1]


def start(
    *arguments,
    code="import sys; from ssd import run; run.stop_at_once(); sys.exit(run.main(sys.argv[1:]))",
):
    command = [sys.executable, "-c", code, *map(str, arguments)]
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # which background jobs of a shell ignore
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=heed)


def interrupt(process):
    """(exit code, stderr) after Ctrl-C, which comes with the first output; one that goes on runs into the timeout."""
    process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    try:
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    return process.returncode, err.decode()


def test_ctrl_c_while_decoding(tmp_path):
    endless = tiny_checkpoint.write(tmp_path / "endless", max_position_embeddings=1_000_000)
    command = ("hi", "--target", endless, "--max-tokens", 999_000, "--ignore-eos", "--threads", 1)
    assert interrupt(start(*command)) == (130, "")


def test_ctrl_c_inside_an_operator():
    code = """
import ctypes, threading
from ssd.cli.command import stop_at_once
stop_at_once()
threading.Timer(1, print, [""], {"flush": True}).start()  # by then the main thread is inside
mutex = ctypes.create_string_buffer(64)
for _ in range(2):  # the second call never returns, and no signal ends it
    ctypes.CDLL(None).pthread_mutex_lock(mutex)
"""
    assert interrupt(start(code=code)) == (130, "")


def test_a_file_shows_its_progress_on_a_terminal(tiny, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "a"}\n' * 3)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [sys.executable, "-m", "ssd.run", "--prompts", prompts, "--target", tiny, "--max-tokens", "4"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs)
    out = process.stdout.read().decode()
    assert process.wait(60) == 0 and len(out.splitlines()) == 3
    shown = os.read(ours, 1 << 16).decode()
    assert "3/3" in shown and "tok/s" in shown and "3 prompts" in shown.splitlines()[-1]


def test_default_target_is_that_of_the_hub():
    assert DEFAULT_TARGET == hub.DEFAULT_TARGET


def test_a_reader_that_has_seen_enough(tiny):
    process = subprocess.Popen(
        [sys.executable, "-m", "ssd.run", "hi", "--target", str(tiny), "--max-tokens", "200", "--ignore-eos"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.close()
    err = process.stderr.read().decode()
    assert process.wait(60) == 0 and "Traceback" not in err and "Exception" not in err


@pytest.mark.parametrize("many", [False, True])
def test_what_is_kept_is_written_when_nobody_reads_any_more(many, tiny, tmp_path):
    out, trace, prompts = tmp_path / "out.json", tmp_path / "trace.json", tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "a"}\n' * 3)
    what = ["--prompts", prompts] if many else ["hi"]
    process = start(*what, "--target", tiny, "--max-tokens", 30, "--ignore-eos", "--json", out, "--trace", trace)
    process.stdout.close()
    err = process.stderr.read().decode()
    assert process.wait(60) == 0 and "Traceback" not in err and "Exception" not in err
    assert [len(o["token_ids"]) for o in json.loads(out.read_text())["outputs"]] == [30] * (3 if many else 1)
    assert json.loads(trace.read_text())["traceEvents"]


def test_kernels_alone_leave_the_runtime_out():
    code = """
import sys, ssd.kernels
assert not any(name.startswith(("ssd.runtime", "ssd.model")) for name in sys.modules)
from ssd import LLM, SamplingParams
SamplingParams()
ssd.nothing
"""
    done = subprocess.run([sys.executable, "-c", code], timeout=120, capture_output=True, text=True)
    assert done.stderr.strip().endswith("module 'ssd' has no attribute 'nothing'")


# --- speculation -----------------------------------------------------------------------------------------------------


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
