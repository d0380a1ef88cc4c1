"""The Triton kernels in Triton's interpreter, which must be chosen before the import, so in a process of their own.

That process runs triton_kernels and those tests of all backends (tests/helpers/backends.py) that the interpreter can
afford.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
TESTS = Path(__file__).parent


@pytest.mark.timeout(1200)
def test_forms_in_the_interpreter():
    shared = [str(p) for p in TESTS.glob("test_*.py") if "ops = backends.fixture(" in p.read_text()]
    assert len(shared) > 7
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", str(TESTS / "triton_kernels"), *shared]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    run = subprocess.run(command, env=environment, cwd=TESTS.parents[1], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
    assert " passed" in run.stdout and "skipped" not in run.stdout
