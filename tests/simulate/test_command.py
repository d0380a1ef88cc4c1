"""The command line: answers, tables, statistics of a run, and refusals."""

import json
import subprocess
import sys

import pytest
from simulate_helpers import call

from ssd.simulate import questions
from ssd.simulate.hardware import GPUS
from ssd.simulate.outcomes import allocate, law


@pytest.mark.parametrize("question", ["best", "gpu", "batch", "replicas"])
def test_questions_are_answered(question, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(questions, "ROUNDS", 100)
    monkeypatch.setattr(questions, "LONGEST", 3)
    file = tmp_path / "a.json"
    more = ["--requests", 20, "--replicas", "1,2"] if question == "replicas" else []
    code, out, _ = call(capsys, "--ask", question, "--gpu", "h200", "--workload", "GSM8K", "--json", file, *more)
    report = json.loads(file.read_text())
    assert code == 0 and out.startswith("| ") and report["answer"] in out
    assert report["rows"] and report["constants"]["host"] > 0
    assert report["statistics"]["llama-3.2-1b"]["acceptance"] > 0.9


def test_tables_are_written(capsys, tmp_path):
    code, out, _ = call(capsys, "--table", "hardware")
    assert code == 0 and all(name in out for name in GPUS) and "data sheet" in out
    file = tmp_path / "p.json"
    assert call(capsys, "--table", "announcement", "--rounds", 50, "--json", file)[0] == 0
    assert len(json.loads(file.read_text())["rows"]) > 20


def test_statistics_of_a_run(capsys, tmp_path):
    run = {"config": {"k": 4, "branches": 12}, "stats": {"acceptance_rate": 0.7, "hit_rate": 0.8}}
    (tmp_path / "run.json").write_text(json.dumps(run))
    file = tmp_path / "a.json"
    pair = ["--target", "llama-3.1-8b", "--draft", "llama-3.2-1b", "--gpus", 1, "--stats", tmp_path / "run.json"]
    assert call(capsys, "--ask", "best", *pair, "--json", file)[0] == 0
    stats = json.loads(file.read_text())["statistics"]["llama-3.2-1b"]
    assert stats["acceptance"] == 0.7
    fan_out = allocate(0.7, 1.0, 4, 12)
    assert law(0.7, stats["exponent"], fan_out).hit_rate(4) == pytest.approx(0.8)


@pytest.mark.parametrize(
    "arguments,words",
    [
        (["--ask", "best", "--gpu", "B100"], "--gpu: got 'B100', wanted one of A100, H100, H200, B200"),
        (["--ask", "best", "--target", "gpt-9"], "--target: got 'gpt-9', wanted a folder with a config.json or one of"),
        (["--ask", "best", "--draft", "x"], "--draft: got 'x'"),
        (["--ask", "best", "--draft", "llama-3.1-8b"], "--acceptance: nothing is published of"),
        (["--ask", "best", "--acceptance", "1.5"], "--acceptance: got 1.5"),
        (["--ask", "best", "--draft", "llama-3.2-1b,llama-3.1-8b", "--acceptance", "0.8"], "for each draft"),
        (["--ask", "best", "--gpus", "1"], "--gpus: llama-3.1-70b does not fit into 1 H100"),
        (["--ask", "best", "--gpus", "0"], "--gpus: got 0, wanted a whole number, at least 1"),
        (["--ask", "best", "--gpus", "x"], "--gpus: got x, wanted a whole number"),
        (["--ask", "best", "-k", "64"], "-k: got 64, wanted a whole number, 1 to 63"),
        (["--ask", "best", "--context", "nan"], "--context: got nan, wanted a number above 0"),
        (["--ask", "best", "--set", "host=inf"], "--set: got 'host=inf'"),
        (["--ask", "best", "--draft", "qwen3-0.6b"], "--draft: qwen3-0.6b has 151936 tokens, wanted the 128256 of"),
        (["--ask", "best", "--draft", ","], "--draft: got ''"),
        (["--ask", "best", "--acceptance", "0.9,0.8"], "--acceptance: got 0.9,0.8"),
        (["--ask", "replicas", "--rate", "inf"], "--rate: got inf"),
        (["--ask", "replicas", "--seed", "-3"], "--seed: got -3"),
        (["--ask", "best", "--set", "speed=1"], "--set: got 'speed=1', wanted NAME=VALUE"),
        (["--ask", "best", "--set", "bandwidth=2"], "--set: got 'bandwidth=2'"),
        (["--ask", "best", "--exponent", "-1"], "--exponent: got -1"),
        (["--ask", "replicas", "--replicas", "1,x"], "--replicas: got 1,x"),
        (["--ask", "replicas", "--rate", "0"], "--rate: got 0"),
        (["--ask", "best", "--stats", "BROKEN"], "is not a JSON object"),
        (["--ask", "best", "--draft", "llama-3.2-1b,llama-3.1-8b", "--stats", "EMPTY"], "--stats: got one run for"),
        (["--ask", "best", "--stats", "EMPTY"], "holds no acceptance_rate"),
        (["--ask", "best", "--stats", "ABSENT"], "ABSENT: No such file"),
        (["--measured", "BROKEN"], "is not a JSON object"),
        (["--measured", "EMPTY"], "wanted the --json of `python -m bench.decode"),
        (["--table", "paper", "--json", "no/such/folder/x.json"], "--json: cannot write"),
        (["--table", "paper", "--json", "/proc/x.json"], "--json: cannot write /proc/x.json"),
        (["--table", "paper", "--json", ""], "--json: got an empty text"),
        (["--table", "other"], "argument --table: invalid choice: 'other'"),
        ([], "one of the arguments --table --ask --measured is required"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(arguments, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "BROKEN").write_text('{"rows": [')
    (tmp_path / "EMPTY").write_text('{"rows": [], "costs": []}')
    code, out, err = call(capsys, *arguments)
    assert (code, out) == (2, "") and err.startswith("ssd: ") and err.count("\n") == 1 and words in err


def test_a_reader_that_has_seen_enough():
    command = [sys.executable, "-m", "ssd.simulate", "--table", "hardware"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    err = process.stderr.read().decode()
    assert (process.wait(60), err) == (0, "")
