"""A few Triton kernels compiled without a GPU, in their own process: what the machine code must and must not have."""

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")
ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    file = tmp_path_factory.mktemp("report") / "report.json"
    command = [sys.executable, "-m", "bench.kernel_report", "--quick", "--forms", "triton", "--json", str(file)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-4000:]
    return [row for row in json.loads(file.read_text())["rows"] if row["form"] == "triton"]


@pytest.mark.timeout(900)
def test_products_use_one_instruction_wide_loads_and_no_spills(rows):
    products = [row for row in rows if row["flops"]]
    assert {(row["kernel"], row["arch"]) for row in products} == {
        (kernel, f"sm_{arch}")
        for kernel in ("tree_attention_fwd_kernel", "linear_fwd_kernel") for arch in (80, 90, 100)
    }  # fmt: skip
    assert {row["head_dim"] for row in products} == {64, 128}
    for row in products:
        assert row["mma"] == ["HMMA.16816.F32.BF16"], row
        assert row["wide_loads"] > 0, row
        assert 0 < row["occupancy"] <= 1 and row["roofline_us"]["H200"] < row["roofline_us"]["A100"]
    assert all(row["spill_bytes"] == 0 for row in rows)


def test_rules_can_be_broken():
    from bench.kernel_report import faults

    row = dict(kernel="x", arch="sm_90", dtype="bfloat16", shape="", head_dim=128, flops=1, mma=["HMMA"], wide_loads=1)
    assert faults(row | {"spill_bytes": 0}) == []
    assert len(faults(row | {"spill_bytes": 8})) == 1
    assert len(faults(row | {"spill_bytes": 0, "mma": [], "wide_loads": 0})) == 2


def test_occupancy_of_known_limits():
    from bench.kernel_report import occupancy

    assert occupancy(32, 256, 0, "sm_90") == 1.0
    assert occupancy(255, 128, 0, "sm_90") == 8 / 64  # two blocks of four warps
    assert occupancy(32, 128, 100 * 1024, "sm_80") == 4 / 64
    assert occupancy(32, 32, 0, "sm_90") == 0.5  # 32 blocks of one warp


def test_forms_take_the_arguments_of_the_operators():
    from ssd.kernels import cuda

    for form in cuda.FORMS:
        schema = getattr(torch.ops.ssd, form.__name__).default._schema
        assert list(inspect.signature(form).parameters) == [argument.name for argument in schema.arguments], form
