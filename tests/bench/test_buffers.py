"""What the kernel report reads from the loops of attention, in code with one buffer, and in lines of such code."""

import pytest

pytest.importorskip("triton")

import torch  # noqa: E402

from bench.kernel_report.buffers import faults, loops, pipeline  # noqa: E402
from bench.kernel_report.triton import attention, compile_launch, disassemble  # noqa: E402
from bench.shapes import MODELS, Size  # noqa: E402

CODE = """
module attributes {"ttg.num-warps" = 1 : i32} {
  %0 = ttg.memdesc_index %9[%a] : !ttg.memdesc<3x64x16xbf16, #s> -> !ttg.memdesc<64x16xbf16, #s>
  %1 = ttg.memdesc_index %8[%a] : !ttg.memdesc<2x64x16xbf16, #s> -> !ttg.memdesc<64x16xbf16, #s>
  scf.for %i = %a to %b step %c : i32 {
    %x:2 = scf.for %j = %a to %b step %c iter_args(%y = %z) -> (i32) {
      %2 = ttg.async_wait %y {num = 3 : i32}
      %3 = tt.dot %p, %q, %r : tensor<16x16xf32>
      %4 = ttg.async_copy_global_to_local %u, %0 mask %m : tensor<64x16x!tt.ptr<bf16>, #b> -> <64x16xbf16, #s>
      %5 = ttg.async_copy_global_to_local %u, %1 mask %m : tensor<64x16x!tt.ptr<bf16>, #b> -> <64x16xbf16, #s>
      %6 = ttg.async_copy_global_to_local %u, %7 mask %m : tensor<64x!tt.ptr<i32>, #b> -> <64xi32, #s>
    }
    scf.for %j = %a to %b step %c : i32 {
      %2 = tt.load %w : !tt.ptr<i32>
    }
  }
"""
GOOD = {"tile_copies": 2, "buffers": 2, "waits": 1, "waiting_loads": 0, "wide_copies": 8}  # two tiles of 4 x 512 bytes
WIDE = {"wide_loads": 8}  # in the machine code
ONE_TILE = {"tile_copies": 1, "buffers": 3, "wide_copies": 4}


def test_loops_of_products_alone_are_read():
    assert len(loops(CODE)) == 1
    assert pipeline(CODE) == GOOD and faults(GOOD | WIDE) == []


@pytest.mark.parametrize(
    "line,planted,changed",
    [
        ("memdesc<2x64", "memdesc<1x64", {"buffers": 1}),
        ("      %3 =", "      %v = tt.load %w : !tt.ptr<i32>\n      %3 =", {"waiting_loads": 1}),
        ("      %4 =", "      %v = ttg.async_wait %y {num = 0 : i32}\n      %4 =", {"waits": 2}),
        ("tensor<64x16x!tt.ptr<bf16>, #b> -> <64x16xbf16, #s>\n      %6", "x\n      %6", ONE_TILE),
    ],
)
def test_planted_faults_are_told(line, planted, changed):
    assert line in CODE
    found = pipeline(CODE.replace(line, planted))
    assert found == GOOD | changed and len(faults(found | WIDE)) == 1


def test_a_copy_of_few_bits_is_told():
    assert faults(GOOD | {"wide_loads": 7}) == ["7 copies of 128 bits, wanted 8"]


def test_one_buffer_is_a_fault_of_the_compiled_kernel():
    launches = attention(Size(MODELS["Llama-1B"], 1, 1, 4096), torch.bfloat16, tree=False).launches
    (launch,) = (launch for launch in launches if launch.name == "tree_attention_fwd_kernel")

    def told():
        code = compile_launch(launch, 90)
        return faults(pipeline(code.asm["ttgir"]) | disassemble(code))

    assert told() == []
    launch.options["num_stages"] = 3
    assert told() == ["2 tiles of 1 buffers, wanted 2 of 2: keys and values"]
    launch.options["num_stages"] = 2
    assert told()[1:] == ["1 loads in the loop wait for memory"]
