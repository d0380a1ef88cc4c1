import pytest
import torch

from ssd.kernels import embedding, linear, linear_swiglu, pack_linear
from ssd.kernels.linear import FORMATS

SHAPES = [(1, 1), (16, 64), (40, 100), (96, 576), (192, 65), (32, 1536)]


def make(n, k, rows, seed=0):
    g = torch.Generator().manual_seed(seed)
    return (
        torch.randn(n, k, generator=g) / k**0.5,
        torch.randn(rows, k, generator=g),
        torch.randn(n, generator=g),
        torch.randn(rows, n, generator=g),
    )


def groups_of_64(x):
    """Largest magnitude of each row and 64 inputs, at every input."""
    padded = torch.nn.functional.pad(x, (0, -x.shape[1] % 64)).unflatten(1, (-1, 64))
    return padded.abs().amax(-1, keepdim=True).expand_as(padded).flatten(1)[:, : x.shape[1]]


def quantised(x, scale):
    scale = torch.where(scale > 0, scale, 1.0)
    return (x / scale).round().clamp(-127, 127) * scale


def expected(w, x, bias, residual, fmt):
    """The definition in float64, on the values that the format keeps."""
    if fmt == "bf16":
        w = w.bfloat16().float()
    if fmt == "int8":
        w = quantised(w, (groups_of_64(w) / 127).half().float())
        x = quantised(x, groups_of_64(x) / 127)
    return (x.double() @ w.double().T + bias.double() + residual.double()).float()


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("n,k", SHAPES)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7, 13])
def test_matches_definition(n, k, rows, fmt):
    w, x, bias, residual = make(n, k, rows)
    got = linear(x, pack_linear(w, fmt), n, bias, residual)
    wanted = expected(w, x, bias, residual, fmt)
    torch_error = ((x @ w.T + bias + residual) - (x.double() @ w.double().T + bias + residual)).abs().max()
    # int8: values at a half may round to either side, at most a handful of steps of 1 / 127
    bound = 0.02 if fmt == "int8" else 2 * torch_error + 2e-6
    assert (got - wanted).abs().max() <= bound


def test_int8_is_exact_on_values_it_can_hold():
    g = torch.Generator().manual_seed(0)
    w = torch.randint(-127, 128, (48, 200), generator=g).float()
    x = torch.randint(-127, 128, (5, 200), generator=g).float()
    w[:, ::64], x[:, ::64] = 127, -127  # so that every scale is 1
    assert torch.equal(linear(x, pack_linear(w, "int8"), 48), x @ w.T)


@pytest.mark.parametrize("fmt", FORMATS)
def test_a_row_has_the_same_bits_among_any_rows_threads_and_isa(fmt, isas):
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


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("rows", [1, 4, 9])
def test_swiglu(fmt, rows):
    w, x, bias, _ = make(96, 80, rows)
    packed = pack_linear(w, fmt)
    gate, up = linear(x, packed, 96, bias).unflatten(1, (3, 2, 16)).unbind(2)
    wanted = (torch.nn.functional.silu(gate.double()) * up).flatten(1).float()
    torch.testing.assert_close(linear_swiglu(x, packed, 96, bias), wanted, rtol=2e-6, atol=1e-6)


def test_embedding():
    table = torch.randn(10, 7)
    ids = torch.tensor([3, 9, 0, 3])
    assert torch.equal(embedding(ids, table), table[ids])
    assert torch.equal(embedding(ids, table.bfloat16()), table.bfloat16()[ids].float())
    with pytest.raises(ValueError, match="ids: got 10 in row 1, wanted 0 to 9"):
        embedding(torch.tensor([0, 10]), table)


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
    with pytest.raises(ValueError, match="too large for int8"):
        pack_linear(w * 1e9, "int8")
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
