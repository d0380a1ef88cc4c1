"""spin checks all interleavings of a few rounds of the cache protocol, and has to find planted faults."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

MODEL = Path(__file__).parents[2] / "protocol" / "spec_cache.pml"
MUTATIONS = {name: int(n) for name, n in re.findall(r"#define (\w+) (\d+) +/\* \w+ .*\*/", MODEL.read_text())}
MUTATIONS = {name: n for name, n in MUTATIONS.items() if name not in ("LIVES", "NODES", "WINDOW")}
PROGRESS = {"MISS_IGNORED"}  # faults that lose progress, found where the verify lane waits without end

pytestmark = pytest.mark.skipif(
    not (shutil.which("spin") and shutil.which("gcc")), reason="spin or gcc is not installed: the model is not checked"
)


def build(folder: Path, epochs: int, *flags: str) -> Path:
    subprocess.run(["spin", "-a", f"-DEPOCHS={epochs}", MODEL], cwd=folder, check=True, capture_output=True)
    subprocess.run(["gcc", "-O1", "-w", "-DCOLLAPSE", *flags, "-o", "pan", "pan.c"], cwd=folder, check=True)
    return folder / "pan"


def errors(pan: Path, *flags: str, mutation: int = 0, patient: int = 0) -> int:
    env = {**os.environ, "MUTATION": str(mutation), "PATIENT": str(patient)}
    run = subprocess.run(
        [pan, "-m100000", *flags], env=env, cwd=pan.parent, capture_output=True, text=True, timeout=120
    )
    assert "max search depth too small" not in run.stdout and "out of memory" not in run.stdout
    return int(re.search(r"errors: (\d+)", run.stdout).group(1))


@pytest.fixture(scope="module")
def safe(tmp_path_factory):
    return build(tmp_path_factory.mktemp("safe"), 5, "-DSAFETY", "-DNOCLAIM")


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    return build(tmp_path_factory.mktemp("live"), 4)


def test_no_torn_read_no_stale_branch_no_deadlock(safe):
    assert errors(safe) == 0
    assert errors(safe, patient=1) == 0


@pytest.mark.parametrize("patient", [0, 1])
def test_both_lanes_progress_under_weak_fairness(live, patient):
    assert errors(live, "-a", "-f", patient=patient) == 0


def test_all_planted_faults_are_listed():
    assert sorted(MUTATIONS.values()) == list(range(1, 17))


@pytest.mark.parametrize("name", MUTATIONS)
def test_planted_fault_is_found(safe, live, name):
    if name in PROGRESS:
        assert errors(live, "-a", "-f", mutation=MUTATIONS[name], patient=1) == 1
        assert errors(safe, mutation=MUTATIONS[name], patient=1) == 1
    else:
        assert errors(safe, mutation=MUTATIONS[name]) == 1
