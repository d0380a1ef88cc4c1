"""The Triton forms in Triton's interpreter, which must be chosen before import: so in their own process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
FOLDER = Path(__file__).parent / "triton_kernels"


@pytest.mark.timeout(1200)
def test_forms_in_the_interpreter():
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(FOLDER)]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    run = subprocess.run(command, env=environment, cwd=FOLDER.parent.parent, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
    assert " passed" in run.stdout and "skipped" not in run.stdout
