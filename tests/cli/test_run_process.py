"""`python -m ssd.run` as a process: Ctrl-C, terminals, closed pipes, and what is imported."""

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


def start(
    *arguments,
    code="import sys; from ssd import run; run.stop_at_once(); sys.exit(run.main(sys.argv[1:]))",
):
    command = [sys.executable, "-c", code, *map(str, arguments)]
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # background jobs of a shell ignore it
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=heed)


def interrupt(process):
    """(exit code, stderr) after Ctrl-C, which is sent at the first output; a process that goes on runs into the
    timeout."""
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


def test_help_answers_at_once():
    code = """
import sys
from ssd.run import parser
parser().format_help()
print([name for name in sys.modules if name.startswith(("torch", "ssd.runtime", "ssd.model"))])
"""
    done = subprocess.run([sys.executable, "-c", code], timeout=120, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


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
