"""A few CUDA kernels, compiled by nvcc without a GPU: what their machine code must and must not have."""

import shutil

import pytest

from bench.kernel_report.__main__ import ARCHS, faults, finished
from bench.kernel_report.cuda import rows


@pytest.fixture(scope="module")
def compiled():
    if not shutil.which("nvcc"):
        pytest.skip("nvcc is not there: the CUDA kernels are not compiled for a GPU")
    try:
        return [finished(row) for row in rows(ARCHS, quick=True)]
    except FileNotFoundError as e:
        pytest.skip(str(e))


@pytest.mark.timeout(900)
def test_attention_has_tensor_core_products_wide_copies_and_no_spills(compiled):
    spans = [row for row in compiled if "span" in row["kernel"]]
    assert {(row["head_dim"], row["arch"]) for row in spans} == {(d, f"sm_{a}") for d in (64, 128) for a in ARCHS}
    for row in compiled:
        assert faults(row) == []
        assert row["spill_bytes"] == row["stack_bytes"] == row["narrow_copies"] == 0 and row["wide_loads"] > 0
    for row in spans:
        assert row["mma"] == ["HMMA.16816.F32.BF16"], row  # the one shape
        assert row["occupancy"] >= 0.125 and row["roofline_us"]["H200"] < row["roofline_us"]["A100"]
