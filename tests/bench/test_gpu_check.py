import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bench import gpu_check, synthetic
from bench.gpu_check import Part

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_sentence_says_so(tmp_path):
    command = [sys.executable, "-m", "bench.gpu_check", "--out", str(tmp_path / "out")]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 1 and run.stdout == "" and not (tmp_path / "out").exists()
    assert run.stderr.count("\n") == 1 and "needs a machine with an NVIDIA GPU" in run.stderr


def test_parts_fail_and_end_alone_and_the_whole_ends_in_time(tmp_path):
    def part(name, code, limit=60.0, *needs):
        return Part(name, [sys.executable, "-c", code], limit, needs)

    rows = gpu_check.check(
        tmp_path,
        [
            part("good", f"print('words'); open({str(tmp_path / 'made.json')!r}, 'w')"),
            part("bad", "raise SystemExit(3)"),
            part("after bad", "pass", 60.0, "bad"),
            part("slow, one", "import time; time.sleep(600)", 1.0),
            part("after good", "pass", 60.0, "good"),
        ],
        100,
    )
    statuses = ["passed", "failed", "not run: bad did not pass", "out of time", "passed"]
    assert [row["status"] for row in rows] == statuses
    assert rows[0]["files"] == ["good.log", "made.json"] and (tmp_path / "good.log").read_text() == "words\n"
    assert rows[3]["seconds"] < 30 and json.loads((tmp_path / "report.json").read_text())["rows"] == rows
    assert gpu_check.check(tmp_path, [part("late", "pass")], 1)[0]["status"] == "no time left"


def test_a_part_leaves_the_next_their_least(tmp_path, monkeypatch):
    limits = {}

    def run(part, out, limit):
        limits[part.name] = limit
        return {"part": part.name, "status": "passed", "seconds": 0.0}

    monkeypatch.setattr(gpu_check, "run", run)
    wanted = [Part("long", [], 500), Part("short", [], 10, least=5), Part("last", [], 500, least=35)]
    gpu_check.check(tmp_path, wanted, 100)
    assert limits == pytest.approx({"long": 60, "short": 10, "last": 100}, abs=1)
    made = gpu_check.parts(tmp_path, "9.0")  # of 7.5 minutes, if the build takes all of its time
    assert made[0].limit + sum(part.least for part in made) <= 450 and all(p.least <= p.limit for p in made)


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
    tests = [part.command for part in gpu_check.parts(tmp_path, "9.0") if "pytest" in part.command]
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
    made = gpu_check.parts(tmp_path, "9.0")
    names = {part.name for part in made}
    for part in made:
        assert set(part.needs) <= names
        if "-m" in part.command and part.command[2].startswith("bench."):
            module, arguments = part.command[2], part.command[3:]
            run = subprocess.run(
                [sys.executable, "-m", module, "--help"], cwd=ROOT, capture_output=True, text=True, check=True
            )
            assert all(word in run.stdout for word in arguments if word.startswith("--")), module


def test_the_end_to_end_run_on_the_cpu():
    """The script of the GPU check runs on a tiny shape, and its rounds, hits and tokens are those of the drawn
    outcomes."""
    tiny, draft = synthetic.TINY.values()
    decoder = synthetic.Decoder(tiny, draft, "cpu", prefix=40, tokens=30, k=3, branches=24, graphs=False)
    plain, sd, ssd = (decoder.row(mode, acceptance=0.7, hit_rate=0.5) for mode in ("ar", "sd", "ssd"))
    assert plain["tokens"] == plain["rounds"] == 30
    assert 27 <= sd["tokens"] <= 30 and sd["rounds"] < sd["tokens"] <= 4 * sd["rounds"]
    assert 0 < ssd["hits"] < ssd["rounds"] and 27 <= ssd["tokens"] <= 30
    every, none = (decoder.row("sd", acceptance=a, hit_rate=0) for a in (1.0, 0.0))
    assert every["tokens"] == 4 * every["rounds"] and none["tokens"] == none["rounds"]
    for row in (plain, sd, ssd):
        assert row["tokens_per_second"] > 0


def test_synthetic_passes_are_those_of_plain_decoding():
    """A chain of rows in one pass has the logits of its rows one by one, so the passes are set up correctly."""
    tiny, draft = synthetic.TINY.values()
    decoder = synthetic.Decoder(tiny, draft, "cpu", prefix=40, tokens=8, k=3, branches=2, graphs=False)
    ids = torch.tensor([5, 9, 200, 31])
    together = decoder.verification(40, ids).clone()
    alone = torch.cat([decoder.plain(40 + i, ids[i : i + 1]) for i in range(4)])
    assert torch.equal(together, alone)
