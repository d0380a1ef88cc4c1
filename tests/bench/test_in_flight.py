"""Linear keeps the memory of an H200 busy at 1 to 128 rows: launches recorded on meta tensors, nothing compiled."""

import pytest

pytest.importorskip("triton")

from bench.kernel_report.in_flight import (  # noqa: E402
    bytes_in_flight,
    pipeline,
    resident,
    tile_bytes,
    too_few,
    turns,
    weight_bytes,
)
from bench.kernel_report.triton import floats, meta, recorded  # noqa: E402
from bench.shapes import MODELS  # noqa: E402
from ssd.kernels.linear import triton as form  # noqa: E402

ROWS = (1, 8, 24, 64, 128)
CUT = {"qkv": (10240, 8192), "o": (8192, 8192), "gate_up": (57344, 8192), "down": (8192, 28672)}  # Llama-70B


def launch_of(n, k, format, rows, swiglu=False, outputs=None):
    packed = form.pack_linear(floats(n, k), format, outputs)
    with recorded() as launches:
        (form.linear_swiglu if swiglu else form.linear)(meta(rows, k), packed, n)
    return launches[0]


def state(launch):
    """(bytes in flight, bytes of all weights), with as many registers as a thread may have."""
    buffers = (launch.args["STAGES"] - 1) * sum(tile_bytes(launch.args))
    blocks = resident(launch.options["maxnreg"], 32 * launch.options["num_warps"], buffers, "sm_90")
    return bytes_in_flight(launch.grid, launch.args, blocks), weight_bytes(launch.args)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("format", ["bf16", "int8"])
@pytest.mark.parametrize("name", MODELS)
def test_the_device_is_filled(name, format, rows):
    for layer, (n, k) in MODELS[name].layers.items():
        assert not too_few(*state(launch_of(n, k, format, rows, layer == "gate_up"))), layer


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("format", ["bf16", "int8"])
@pytest.mark.parametrize("layer", CUT)
def test_a_quarter_of_the_rows_fills_it_too(layer, format, rows):
    n, k = CUT[layer]
    assert not too_few(*state(launch_of(n // 4, k, format, rows, layer == "gate_up", n)))


def test_too_few_programs_or_buffers_are_found():
    launch = launch_of(4096, 4096, "bf16", 8)
    assert not too_few(*state(launch))
    for broken in ({"STAGES": 2}, {"BN": 8}):
        launch = launch_of(4096, 4096, "bf16", 8)
        launch.args |= broken
        assert too_few(*state(launch)), broken
    launch = launch_of(4096, 4096, "bf16", 8)
    launch.grid = (1, 16, 1)
    assert too_few(*state(launch))


def test_rows_share_their_weights():
    """32 programs along the outputs and the parts, each with three tiles of 64 x 64 bfloat16 on their way."""
    launch = launch_of(512, 512, "bf16", 8)
    launch.args |= {"BN": 64, "BK": 64, "STAGES": 4, "part_k": 512, "FOLD": False}
    for rows in (1, 4):
        assert bytes_in_flight((rows, 8, 4), launch.args, 2) == 32 * 3 * 64 * 64 * 2
    assert bytes_in_flight((4, 8, 132), launch.args, 2) == 66 * 3 * 64 * 64 * 2  # a quarter of those resident
    assert weight_bytes(launch.args) == 512 * 512 * 2
    launch.args["part_k"] = 128
    assert turns(launch.args) == 2 and bytes_in_flight((1, 8, 4), launch.args, 2) == 32 * 2 * 64 * 64 * 2


LOOP = """
    %w = ttg.local_alloc : () -> !ttg.memdesc<4x64x64xbf16, #shared>
    %x = ttg.local_alloc : () -> !ttg.memdesc<3x16x64xbf16, #shared>
    %before = tt.load %p : tensor<64x!tt.ptr<f16>>
    %acc:2 = scf.for %k = %a to %b step %c {
      %s = tt.load %q : tensor<64x!tt.ptr<f16>>
      %t = tt.dot %x, %w : tensor<16x64xbf16, #ttg.dot_op<{opIdx = 0, parent = #mma, kWidth = 2}>>
    } loc(#loc1)
    scf.for %k = %a to %b step %c {
      %other = tt.load %q : tensor<64x!tt.ptr<f16>>
    } loc(#loc1)
"""


def test_pipelines_are_read_from_the_code():
    assert pipeline(LOOP) == {"buffers": 3, "waiting_loads": 1, "k_order": [2]}
    assert pipeline(LOOP.replace("%s = tt.load", "%s = ttg.async_copy_global_to_local"))["waiting_loads"] == 0
