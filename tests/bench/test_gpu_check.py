"""The check of a machine with a GPU: its parts, their verdicts, and all of it on the CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_checkpoint
import torch

from bench import gpu_check
from bench.gpu_check import Part
from bench.verdicts import Wrong

ROOT = Path(__file__).parents[2]


def parts(out, device="cuda"):
    return gpu_check.parts(out, device, None, None, "9.0")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_sentence_says_so(tmp_path):
    command = [sys.executable, "-m", "bench.gpu_check", "--out", str(tmp_path / "out")]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 2 and run.stdout == "" and not (tmp_path / "out").exists()
    assert run.stderr.count("\n") == 1 and "found no GPU; it needs an NVIDIA GPU" in run.stderr


def test_parts_fail_and_end_alone_and_the_whole_ends_in_time(tmp_path, capsys):
    def part(name, code, limit=60.0, *needs, verdict=lambda out: "measured"):
        return Part(name, [sys.executable, "-c", code], limit, needs, verdict=verdict)

    def wrong(out):
        raise Wrong("7 differ")

    rows = gpu_check.check(
        tmp_path,
        [
            part("good", f"print('words'); open({str(tmp_path / 'made.json')!r}, 'w')"),
            part("bad", "raise SystemExit('no such thing')"),
            part("after bad", "pass", 60.0, "bad"),
            part("slow one", "import time; time.sleep(600)", 1.0),
            part("after good", "pass", 60.0, "good"),
            part("wrong", "pass", verdict=wrong),
            part("unreadable", "pass", verdict=lambda out: {}["rows"]),
        ],
        100,
    )
    assert [(row["verdict"], row["measured"]) for row in rows] == [
        ("ok", "measured"),
        ("FAILED", "measured: no such thing"),
        ("FAILED", "not run, since it needs bad"),
        ("FAILED", "out of time"),
        ("ok", "measured"),
        ("FAILED", "7 differ"),
        ("FAILED", "its results cannot be read: KeyError('rows')"),
    ]
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [row["verdict"] for row in rows]
    assert lines[1].startswith("FAILED bad: measured: no such thing (")
    assert rows[0]["files"] == ["good.log", "made.json"] and (tmp_path / "good.log").read_text() == "words\n"
    assert rows[3]["seconds"] < 30 and json.loads((tmp_path / "report.json").read_text())["rows"] == rows
    assert gpu_check.check(tmp_path, [part("late", "pass")], 1)[0]["measured"] == "no time left"


def test_results_of_an_earlier_check_are_not_judged(tmp_path):
    old = tmp_path / "old.json"
    old.write_text("{}")
    part = Part("part", [sys.executable, "-c", "pass", str(old)], 60, verdict=lambda out: str(old.exists()))
    assert gpu_check.check(tmp_path, [part], 100)[0]["measured"] == "False"


def test_a_part_leaves_the_next_their_least(tmp_path, monkeypatch):
    limits = {}

    def run(part, out, limit):
        limits[part.name] = limit
        return {"part": part.name, "verdict": "ok", "measured": "", "seconds": 0.0}

    monkeypatch.setattr(gpu_check, "run", run)
    wanted = [Part("long", [], 500), Part("short", [], 10, least=5), Part("last", [], 500, least=35)]
    gpu_check.check(tmp_path, wanted, 100)
    assert limits == pytest.approx({"long": 60, "short": 10, "last": 100}, abs=1)
    made = parts(tmp_path)  # of 9 minutes, if the build takes all of its time
    assert made[0].limit + sum(part.least for part in made) <= 540 and all(p.least <= p.limit for p in made)


def test_the_product_comes_first_and_what_compiles_is_timed_apart(tmp_path):
    names = [part.name for part in parts(tmp_path)]
    product = [name for mode in ("ar", "sd", "ssd", "auto") for name in (f"first ssd.run {mode}", f"ssd.run {mode}")]
    product += ["bench.exact", "first bench.hit_rate", "bench.hit_rate"]
    assert names[:2] == ["build", "reference on the CPU"] and names[2 : 2 + len(product)] == product
    assert names[2 + len(product) :] == ["bench.operators", "bench.synthetic", "tests on the GPU", "other tests"]
    assert [part.name for part in parts(tmp_path, "cpu")] == names[1:-2]
    for part in parts(tmp_path, "cuda:1"):
        on = part.command[part.command.index("--device") + 1] if "--device" in part.command else "cuda:1"
        assert on == ("cpu" if part.name == "reference on the CPU" else "cuda:1")


COLLECT = """
import json, sys, pytest, torch
torch.cuda.is_available = lambda: True
class Seen:
    def pytest_collection_finish(self, session):
        has = lambda item, name: bool(item.get_closest_marker(name))
        self.kept = [(i.nodeid, has(i, "gpu"), has(i, "slow")) for i in session.items]
found = []
for expression in sys.argv[1:]:
    seen = Seen()
    pytest.main(["--collect-only", "-qq", "-p", "no:cacheprovider", "-m", expression, "tests"], plugins=[seen])
    found.append(seen.kept)
print("FOUND", json.dumps(found), sep="")
"""


def test_every_test_is_in_a_part_and_those_of_a_gpu_come_first(tmp_path):
    """The tests are those that a machine with a GPU would collect."""
    tests = [part.command for part in parts(tmp_path) if "pytest" in part.command]
    assert all(command[-1] == "tests" for command in tests)
    wanted = [command[len(command) - command[::-1].index("-m")] for command in tests]
    run = subprocess.run(
        [sys.executable, "-c", COLLECT, *wanted, "gpu or not gpu"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    on_gpu, others, every = json.loads(run.stdout.split("FOUND")[1])
    assert on_gpu == [test for test in every if test[1]] and len(on_gpu) > 100
    assert {"tests/kernels/triton_kernels", "tests/kernels/test_cuda_gpu.py"} <= {
        place for test in on_gpu for place in (test[0].split("::")[0], test[0].split("::")[0].rpartition("/")[0])
    }
    assert others == [test for test in every if not test[1] and not test[2]]


def test_the_parts_are_commands_that_exist(tmp_path):
    made = parts(tmp_path)
    helps = {}
    for part in made:
        assert set(part.needs) <= {other.name for other in made}
        module = part.command[2]
        if module.startswith(("bench.", "ssd.")):
            if module not in helps:
                command = [sys.executable, "-m", module, "--help"]
                helps[module] = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
            assert all(word in helps[module] for word in part.command if word.startswith("--")), module
    assert len(helps) == 5


FAULT = """
import ssd.runtime.engine.verify as verify
coupled = verify.verify_coupled

def shifted(*args):
    verified = coupled(*args)
    verified.emitted[0, 0] ^= 1
    return verified

verify.verify_coupled = shifted
"""


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """A tiny target that is its own draft, so that both agree."""
    return tiny_checkpoint.write(tmp_path_factory.mktemp("target"), max_position_embeddings=2048)


def check(target, out, *more, **environment):
    command = [sys.executable, "-m", "bench.gpu_check", "--device", "cpu", "--out", str(out)]
    command += ["--target", str(target), "--draft", str(target), *more]
    environment = os.environ | {"XDG_CACHE_HOME": str(out)} | environment
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    return run.returncode, run.stdout.splitlines(), json.loads((out / "report.json").read_text())["rows"]


def test_all_of_it_on_the_cpu(target, tmp_path):
    """Every part that needs no GPU runs as it would on one, with torch in the place of cuBLAS."""
    code, lines, rows = check(target, tmp_path)
    assert code == 0, lines
    assert len(rows) == 14 and all(line.startswith("ok ") for line in lines[:-1])
    told = {row["part"]: row["measured"] for row in rows}
    assert told["ssd.run ar"].endswith("the first 16 as on the CPU")
    for mode in ("sd", "ssd", "auto"):
        assert told[f"ssd.run {mode}"].startswith("the tokens of ar, 16 tokens, ")
    assert told["ssd.run sd"].endswith("acceptance rate 1.00, hit rate none")
    assert told["bench.exact"] == "18 answers of 216 tokens compared, 0 differ"
    assert told["bench.hit_rate"].startswith("hit rate 1.00 in lockstep, ")
    assert told["bench.operators"].startswith("15 right; times as fast: linear (cpu) against torch bfloat16 ")
    assert all(f"{mode} " in told["bench.synthetic"] for mode in ("ar", "sd", "ssd", "auto"))


def test_a_planted_fault_fails_the_check(target, tmp_path):
    """Every process of the check verifies wrongly."""
    (tmp_path / "sitecustomize.py").write_text(FAULT)
    only = "ssd.run ar,ssd.run sd,bench.exact,bench.synthetic,bench.operators"
    only += ",reference on the CPU"
    code, lines, rows = check(target, tmp_path / "out", "--only", only, PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert code == 1 and lines[-1].startswith("3 of 6 parts failed; results are in ")
    told = {row["part"]: (row["verdict"], row["measured"]) for row in rows}
    assert [told[name][0] for name in ("ssd.run ar", "bench.operators")] == ["ok", "ok"]
    assert told["ssd.run sd"][0] == "FAILED" and "is not that of ar" in told["ssd.run sd"][1]
    assert told["bench.exact"][0] == "FAILED" and "18 answers of 216 tokens compared, 1" in told["bench.exact"][1]
    assert told["bench.synthetic"][0] == "FAILED" and told["bench.synthetic"][1].startswith("a token is wrong; ar ")


def test_parts_that_do_not_exist_are_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        gpu_check.main(["--device", "cpu", "--out", str(tmp_path), "--only", "bench.exakt"])
    assert "--only: got 'bench.exakt', wanted some of reference on the CPU, " in capsys.readouterr().err
