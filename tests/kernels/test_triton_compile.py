"""A few Triton kernels, compiled without a GPU in a process of their own: what their machine code must and must not
have."""

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")
ROOT = Path(__file__).parents[2]


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
        scales = row["wide_loads"] // 2 if row["dtype"] == "int8" else 0
        assert "tile_copies" in row or 0 <= row["narrow_copies"] <= scales < row["wide_loads"], row
        assert 0 < row["occupancy"] <= 1 and row["roofline_us"]["H200"] < row["roofline_us"]["A100"]
    assert all(row["spill_bytes"] == 0 for row in rows)


def test_keys_and_values_arrive_while_others_are_multiplied(rows):
    attention = [row for row in rows if row["kernel"] == "tree_attention_fwd_kernel"]
    assert len(attention) == 4 * 3
    for row in attention:
        assert (row["tile_copies"], row["buffers"], row["waits"], row["waiting_loads"]) == (2, 2, 1, 0), row
        assert 0 < row["wide_copies"] <= row["wide_loads"], row


def test_the_loop_of_linear_has_all_buffers_and_waits_for_no_load(rows):
    """Recorded launches have the buffers that the compiler makes, in the shared memory that is reckoned with."""
    from bench.kernel_report.in_flight import tile_bytes
    from bench.kernel_report.triton import MODELS, product

    large, small = MODELS["Llama-8B"], MODELS["Llama-1B"]
    for case in (
        product(large, "bf16", "qkv", 8),
        product(small, "int8", "gate_up", 8),
        product(large, "int8", "qkv", 64),
    ):
        (row,) = (r for r in rows if r["shape"] == case.shape and r["arch"] == "sm_90")
        args = case.launches[0].args
        assert row["buffers"] == args["STAGES"] - 1 > 1
        assert row["buffers"] * sum(tile_bytes(args)) == row["shared_bytes"]
        assert row["waiting_loads"] == 0 and row["k_order"] == [4 if args["INT8"] else 2]
        assert row["in_flight_bytes"] > 3.4e6


GOOD = dict(kernel="x", arch="sm_90", dtype="bfloat16", shape="s", head_dim=128, flops=1, bytes=1, threads=128,
            registers=9, shared_bytes=0, spill_bytes=0, mma=["HMMA"], wide_loads=1, narrow_copies=0, rows=8,
            weight_bytes=9_000_000, in_flight_bytes=4_000_000, waiting_loads=0, k_order=[2])  # fmt: skip

PIPELINED = dict(tile_copies=2, buffers=2, waits=1, waiting_loads=0, wide_copies=1)


@pytest.mark.parametrize(
    "broken,words",
    [
        ({"spill_bytes": 8}, "8 bytes spilled"),
        ({"mma": []}, "no tensor-core instruction"),
        ({"wide_loads": 0}, "no 128-bit load"),
        ({"narrow_copies": 3}, "3 copies of less than 128 bits"),
        ({"dtype": "int8", "k_order": [4], "wide_loads": 4, "narrow_copies": 3}, "3 copies of less than 128 bits"),
        ({"in_flight_bytes": 3_300_000}, "3,300,000 of 9,000,000 bytes in flight, wanted 3,400,000"),
        ({"waiting_loads": 1}, "1 loads in the loop wait for memory"),
        (PIPELINED | {"buffers": 1}, "2 tiles of 1 buffers, wanted 2 of 2: keys and values"),
        (PIPELINED | {"tile_copies": 1}, "1 tiles of 2 buffers, wanted 2 of 2: keys and values"),
        (PIPELINED | {"waits": 2}, "2 waits for copies in a turn of the loop, wanted 1"),
        (PIPELINED | {"wide_copies": 2}, "1 copies of 128 bits, wanted 2"),
        ({"k_order": [2, 4]}, "takes k in the order [2, 4], wanted [2]"),
    ],
)
def test_the_report_ends_with_an_error_where_a_rule_is_broken(broken, words, monkeypatch, capsys):
    from bench.kernel_report import __main__ as kernel_report

    monkeypatch.setattr(sys, "argv", ["kernel_report"])
    for row in (GOOD, GOOD | broken | {"head_dim": 256}, GOOD | broken | {"dtype": "float32"}, GOOD | broken):
        rows = [kernel_report.finished(GOOD | {"form": "cuda"}), kernel_report.finished(row | {"form": "cuda"})]
        monkeypatch.setattr(kernel_report, "report", lambda rows=rows, **_: (rows, []))
        if row != GOOD | broken:
            kernel_report.main()
            continue
        with pytest.raises(SystemExit) as end:
            kernel_report.main()
        assert end.value.code == f"x sm_90 {row['dtype']} s: {words}"


def test_instructions_are_read_from_machine_code():
    from bench.kernel_report.sass import instructions

    code = """
        /*0010*/ LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0020*/ LDG.E R0, desc[UR4][R8.64] ;
        /*0030*/ LDGSTS.E.BYPASS.LTC128B.128.ZFILL [R9], desc[UR4][R2.64], P0 ;
        /*0040*/ LDGSTS.E.LTC128B.64 [R9+0x8], desc[UR4][R2.64] ;
        /*0050*/ HMMA.16816.F32.BF16 R4, R4, R8, R4 ;
    """
    assert instructions(code) == {"mma": ["HMMA.16816.F32.BF16"], "wide_loads": 2, "narrow_copies": 1}


def test_occupancy_of_known_limits():
    from bench.kernel_report.__main__ import occupancy

    assert occupancy(32, 256, 0, "sm_90") == 1.0
    assert occupancy(255, 128, 0, "sm_90") == 8 / 64  # two blocks of four warps
    assert occupancy(32, 128, 100 * 1024, "sm_80") == 4 / 64
    assert occupancy(32, 32, 0, "sm_90") == 0.5  # 32 blocks of one warp


def test_forms_take_the_arguments_of_the_operators():
    from ssd.kernels import cuda

    for form in cuda.FORMS:
        schema = getattr(torch.ops.ssd, form.__name__).default._schema
        assert list(inspect.signature(form).parameters) == [argument.name for argument in schema.arguments], form
