"""The CUDA kernels, compiled by nvcc without a GPU: what their machine code must not have."""

import re
import shutil
from pathlib import Path

import pytest

from bench.kernel_report.__main__ import ARCHS, faults, finished
from bench.kernel_report.cuda import rows

CUDA = Path(__file__).parents[2] / "csrc/cuda"


@pytest.mark.timeout(900)
def test_every_kernel_is_in_the_report_and_spills_nothing():
    if not shutil.which("nvcc"):
        pytest.skip("nvcc is not there: the CUDA kernels are not compiled for a GPU")
    try:
        compiled = [finished(row) for row in rows(ARCHS)]
    except FileNotFoundError as e:
        pytest.skip(str(e))
    names = {n for path in CUDA.glob("*.cuh") for n in re.findall(r"__global__[^;{]*?(\w+_kernel)\(", path.read_text())}
    assert {(row["kernel"], row["arch"]) for row in compiled} == {(n, f"sm_{a}") for n in names for a in ARCHS}
    for row in compiled:
        assert faults(row) == [] and row["spill_bytes"] == row["stack_bytes"] == 0 and row["registers"] > 0
