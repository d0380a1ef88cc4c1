import itertools

import backends
import gguf
import numpy as np
import pytest
import torch

from ssd.kernels import embedding, linear, linear_swiglu, pack_linear
from ssd.kernels.linear import BLOCK_BYTES, FORMATS
from ssd.kernels.linear.reference import dequantise, quantise_rows

SHAPES = [(1, 1), (16, 64), (40, 100), (96, 576), (192, 65), (32, 1536)]
SIZES = [*itertools.product(SHAPES, [1, 2, 3, 4, 7, 13]), ((64, 576), 17), ((32, 512), 130)]
FEW = [((1, 1), 1), ((40, 100), 3), ((192, 65), 2), ((64, 576), 17), ((32, 512), 130)]
ops = backends.fixture("cpu", "triton")


def make(n, k, rows, seed=0):
    g = torch.Generator().manual_seed(seed)
    return (
        torch.randn(n, k, generator=g) / k**0.5,
        torch.randn(rows, k, generator=g),
        torch.randn(n, generator=g),
        torch.randn(rows, n, generator=g),
    )


def groups_of_64(x):
    """The largest magnitude of each row and 64 inputs, repeated for every input."""
    padded = torch.nn.functional.pad(x, (0, -x.shape[1] % 64)).unflatten(1, (-1, 64))
    return padded.abs().amax(-1, keepdim=True).expand_as(padded).flatten(1)[:, : x.shape[1]]


def quantised(x, scale):
    scale = torch.where(scale > 0, scale, 1.0)
    return (x / scale).round().clamp(-127, 127) * scale


def blocks_of(w, fmt):
    """Weights in the blocks of a GGUF file, rounded by the gguf package."""
    padded = torch.nn.functional.pad(w, (0, -w.shape[1] % 32)).numpy()
    quants = gguf.quants.quantize(padded, gguf.GGMLQuantizationType[fmt.upper()])
    return torch.from_numpy(quants).unflatten(1, (-1, BLOCK_BYTES[fmt]))


def expected(w, x, bias, residual, fmt, quantise):
    """The definition in float64, on the values that the format stores; quantise: whether x is rounded too."""
    if fmt in ("bf16", "fp16"):
        w = w.to(backends.FORMATS[fmt]).float()
    if fmt == "int8":
        w = quantised(w, (groups_of_64(w) / 127).half().float())
        x = quantised(x, groups_of_64(x) / 127) if quantise else x
    if fmt in BLOCK_BYTES:
        w, x = dequantise(blocks_of(w, fmt))[:, : w.shape[1]], quantise_rows(x)
    return (x.double() @ w.double().T + bias.double() + residual.double()).float()


@pytest.mark.parametrize("shape,rows", backends.affordable(SIZES, FEW))
def test_matches_definition(ops, shape, rows):
    n, k = shape
    for fmt in ops.formats:
        w, x, bias, residual = make(n, k, rows)
        x = x.to(ops.activations(fmt))
        got = ops.linear(x, ops.pack_linear(w, fmt), n, bias, residual)
        x = x.float()
        wanted = expected(w, x, bias, residual, fmt, quantise=ops.name == "cpu")
        torch_error = ((x @ w.T + bias + residual) - (x.double() @ w.double().T + bias + residual)).abs().max()
        # x in int8: values halfway may round to either side, so results differ by a few steps of 1 / 127
        bound = 0.02 if fmt == "int8" or fmt in BLOCK_BYTES else 2 * torch_error + 2e-6
        assert got.dtype == torch.float32 and (got - wanted).abs().max() <= bound, fmt


def test_int8_is_exact_on_values_it_can_hold(ops):
    g = torch.Generator().manual_seed(0)
    w = torch.randint(-127, 128, (48, 200), generator=g).float()
    x = torch.randint(-127, 128, (5, 200), generator=g).float()
    w[:, ::64], x[:, ::64] = 127, -127  # so that every scale is 1
    assert torch.equal(ops.linear(x, ops.pack_linear(w, "int8"), 48), x @ w.T)


@pytest.mark.parametrize("fmt", BLOCK_BYTES)
def test_blocks_are_those_of_a_gguf_file(fmt):
    """Weights are rounded as the gguf package rounds them, and numbers that it read are kept."""
    w = torch.randn(40, 96, generator=torch.Generator().manual_seed(0))
    w[3], w[5, 32:64] = 0, 0.25
    blocks = blocks_of(w, fmt)
    assert torch.equal(pack_linear(w, fmt), pack_linear(blocks, fmt))
    theirs = gguf.quants.dequantize(blocks.flatten(1).numpy(), gguf.GGMLQuantizationType[fmt.upper()])
    assert np.array_equal(dequantise(blocks).numpy(), theirs)
    step = torch.zeros(96, 96).fill_diagonal_(127)  # quantised exactly
    torch.testing.assert_close(
        linear(step, pack_linear(blocks, fmt), 40).T / 127, dequantise(blocks), rtol=1e-6, atol=0
    )


@pytest.mark.parametrize("fmt", BLOCK_BYTES)
def test_integers_at_their_ends(fmt, isas):
    """The sums are the largest possible, in each instruction set."""
    blocks = torch.zeros(32, 3, BLOCK_BYTES[fmt], dtype=torch.uint8)
    scales = 4 if fmt == "q4_1" else 2
    blocks[..., :scales].view(torch.float16)[:] = 1
    blocks[:16, :, scales:], blocks[16:, :, scales:] = 127 if fmt == "q8_0" else 255, 129 if fmt == "q8_0" else 0
    x = torch.tensor([[127.0], [-127.0]]).expand(2, 96).contiguous()
    for isa in isas:
        torch.ops.ssd.set_isa(isa)
        assert torch.equal(linear(x, pack_linear(blocks, fmt), 32), x @ dequantise(blocks).T)


SLICES = [(0, 1), (0, 2), (0, 3), (0, 5), (0, 6), (0, 7), (0, 12), (0, 13), (0, 64), (97, 98), (3, 40)]


@pytest.mark.parametrize("fmt", backends.affordable(list(FORMATS), ["bf16", "int8"]))
def test_a_row_has_the_same_bits_among_any_rows(ops, fmt):
    """A row has the same result alone and among rows that use the middle and the widest tiles."""
    if fmt not in ops.formats:
        pytest.skip("formats of GGUF files are the CPU's")
    n, k = (64, 576) if fmt == "bf16" else (32, 200)
    w, x, bias, residual = make(n, k, 130)
    x, packed = x.to(ops.activations(fmt)), ops.pack_linear(w, fmt)
    y, z = ops.linear(x, packed, n, bias, residual), ops.linear_swiglu(x, packed, n)
    for first, last in backends.affordable(SLICES, [(0, 1), (97, 98), (3, 40)]):
        rows = slice(first, last)
        assert torch.equal(ops.linear(x[rows], packed, n, bias, residual[rows]), y[rows]), rows
        assert torch.equal(ops.linear_swiglu(x[rows], packed, n), z[rows]), rows


@pytest.mark.parametrize("fmt", FORMATS)
def test_a_row_has_the_same_bits_with_any_threads_and_isa(fmt, isas):
    w, x, bias, residual = make(88, 200, 64)
    packed = pack_linear(w, fmt)
    wanted = linear(x, packed, 88, bias, residual)
    for isa in isas:
        torch.ops.ssd.set_isa(isa)
        for rows in (1, 2, 3, 5, 6, 7, 12, 13, 64):
            assert torch.equal(linear(x[:rows], packed, 88, bias, residual[:rows]), wanted[:rows]), (isa, rows)
    for threads in ([-1], [-1, -1], [-1, -1, -1]):
        torch.ops.ssd.bind_threads(threads)
        assert torch.equal(linear(x, packed, 88, bias, residual), wanted)
    assert torch.ops.ssd.num_threads() == 3
    torch.ops.ssd.bind_threads([-1, -1])


@pytest.mark.parametrize("n,k,rows", [(96, 80, 1), (96, 80, 4), (96, 128, 9), (64, 512, 129)])
def test_swiglu(ops, n, k, rows):
    for fmt in ops.formats:
        w, x, bias, _ = make(n, k, rows)
        x, packed = x.to(ops.activations(fmt)), ops.pack_linear(w, fmt)
        gate, up = ops.linear(x, packed, n, bias).unflatten(1, (-1, 2, 16)).unbind(2)
        wanted = (torch.nn.functional.silu(gate.double()) * up).flatten(1).float()
        got = ops.linear_swiglu(x, packed, n, bias)
        assert got.dtype == x.dtype
        rtol = 2e-6 if x.dtype == torch.float32 else torch.finfo(x.dtype).eps
        torch.testing.assert_close(got.float(), wanted, rtol=rtol, atol=1e-6)


def test_embedding(ops):
    table = torch.randn(10, 70)
    ids = torch.tensor([3, 9, 0, 3])
    assert torch.equal(ops.embedding(ids, table), table[ids])
    assert torch.equal(ops.embedding(ids, table.bfloat16()), table.bfloat16()[ids].float())


def test_an_id_outside_of_the_table_is_named():
    with pytest.raises(ValueError, match="ids: got 10 in row 1, wanted 0 to 9"):
        embedding(torch.tensor([0, 10]), torch.randn(10, 7))


@pytest.mark.parametrize("fmt", FORMATS)
def test_opcheck(fmt):
    w, x, bias, residual = make(32, 64, 3)
    torch.library.opcheck(torch.ops.ssd.pack_linear.default, (w, fmt))
    packed = pack_linear(w, fmt)
    torch.library.opcheck(torch.ops.ssd.linear.default, (x, packed, 32, bias, residual))
    torch.library.opcheck(torch.ops.ssd.linear_swiglu.default, (x, packed, 32, bias))
    torch.library.opcheck(torch.ops.ssd.embedding.default, (torch.tensor([1, 2]), w))


def test_bad_arguments_are_named():
    w, x, bias, residual = make(32, 64, 3)
    packed = pack_linear(w, "bf16")
    with pytest.raises(ValueError, match="format: got 'int4'"):
        pack_linear(w, "int4")
    with pytest.raises(ValueError, match="weight: got strides"):
        pack_linear(w.T, "fp32")
    for fmt in ("int8", *BLOCK_BYTES):
        with pytest.raises(ValueError, match=f"row 0 is too large for {fmt}"):
            pack_linear(w * 1e9, fmt)
    for fmt in ("q4_0", "int8", "bf16"):
        with pytest.raises(ValueError, match=r"weight: got bytes of shape \[32, 2, 20\] for format"):
            pack_linear(torch.zeros(32, 2, 20, dtype=torch.uint8), fmt)
    with pytest.raises(ValueError, match="row 0 has a block with a scale that is not finite"):
        pack_linear(torch.full((32, 2, 20), 255, dtype=torch.uint8), "q4_1")
    with pytest.raises(ValueError, match="packed: got shape"):
        linear(x, torch.zeros(2, 2, 333, dtype=torch.uint8), 32)
    with pytest.raises(ValueError, match="x: got 63 columns"):
        linear(x[:, 1:].contiguous(), packed, 32)
    with pytest.raises(ValueError, match="n: got 64"):
        linear(x, packed, 64)
    with pytest.raises(ValueError, match="bias: got 31"):
        linear(x, packed, 32, bias[1:])
    with pytest.raises(ValueError, match="residual: got shape"):
        linear(x, packed, 32, bias, residual[1:])
    with pytest.raises(TypeError, match="packed: got dtype"):
        linear(x, packed.double(), 32)
    with pytest.raises(ValueError, match="multiple of 32"):
        linear_swiglu(x, pack_linear(w[:16], "bf16"), 16)
