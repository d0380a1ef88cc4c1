import pytest
import torch

from ssd.kernels.embedding import reference as embedding_reference
from ssd.kernels.embedding.triton import embedding
from ssd.kernels.kv_copy import reference as kv_copy_reference
from ssd.kernels.kv_copy.triton import kv_copy
from ssd.kernels.linear import reference
from ssd.kernels.linear import triton as form
from ssd.kernels.norm import reference as norm_reference
from ssd.kernels.norm.triton import add_rms_norm, rms_norm
from ssd.kernels.rope_append import reference as rope_reference
from ssd.kernels.rope_append.triton import rope_append

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "int8": torch.bfloat16}


def unpacked(packed, n, k):
    """The float32 weight that packed stands for."""
    if packed.dtype != torch.uint8:
        return packed.float().flatten(0, 1)[:n]
    quants, scales = packed.split([packed.shape[1] * 32 // 33, packed.shape[1] // 33], 1)
    quants = quants.contiguous().view(torch.int8).view(-1, 64) * 1.0
    return (quants * scales.contiguous().view(torch.float16).view(-1, 1)).view(len(packed) * 16, -1)[:n, :k]


def problem(device, format, n, k, rows):
    torch.manual_seed(0)
    x, weight = torch.randn(rows, k, device=device).to(DTYPES[format]), torch.randn(n, k, device=device)
    packed = form.pack_linear(weight, format)
    return x, packed, unpacked(packed, n, k), torch.randn(n, device=device), torch.randn(rows, n, device=device)


@pytest.mark.parametrize("format", DTYPES)
@pytest.mark.parametrize("n,k,rows", [(80, 100, 3), (64, 576, 17), (32, 512, 130)])
def test_linear_matches_reference(device, format, n, k, rows):
    """float32 sums of products of 16 bits: the result is that of float32, whatever the dtype; K in one part or more."""
    x, packed, weight, bias, residual = problem(device, format, n, k, rows)
    got = form.linear(x, packed, n, bias, residual)
    torch.testing.assert_close(got, reference.linear(x, weight, bias, residual), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("format", ["fp16", "int8"])
@pytest.mark.parametrize("n,k,rows", [(96, 128, 5), (64, 512, 129)])
def test_swiglu_matches_reference(device, format, n, k, rows):
    x, packed, weight, bias, _ = problem(device, format, n, k, rows)
    gate, up = (reference.linear(x, weight, bias)).unflatten(-1, (-1, 2, 16)).unbind(-2)
    want = (torch.nn.functional.silu(gate) * up).flatten(-2)
    got = form.linear_swiglu(x, packed, n, bias)
    assert got.dtype == x.dtype
    torch.testing.assert_close(got.float(), want, rtol=torch.finfo(x.dtype).eps, atol=1e-3)


@pytest.mark.parametrize("format", ["bf16", "int8"])
def test_row_alone_equals_row_among_others(device, format):
    """One row, and rows that take the middle and the widest tiles."""
    n, k = (64, 576) if format == "bf16" else (32, 192)
    x, packed, _, bias, residual = problem(device, format, n, k, 130)
    y, z = form.linear(x, packed, n, bias, residual), form.linear_swiglu(x, packed, n)
    for first, last in ((0, 1), (97, 98), (3, 40)):
        rows = slice(first, last)
        assert torch.equal(form.linear(x[rows], packed, n, bias, residual[rows]), y[rows])
        assert torch.equal(form.linear_swiglu(x[rows], packed, n), z[rows])


def test_parts_of_k_cover_it_and_never_depend_on_rows():
    for n, k in ((576, 576), (576, 1536), (4096, 14336), (32, 64), (128256, 4096), (1024, 8191)):
        for swiglu in (False, True):
            parts, length = form.plan(n, k, swiglu)
            assert length % 64 == 0 and (parts - 1) * length < k <= parts * length


def test_int8_is_within_half_a_step(device):
    torch.manual_seed(0)
    weight = torch.randn(5, 100, device=device)
    weight[2] = 0
    back = unpacked(form.pack_linear(weight, "int8"), 5, 100)
    step = torch.nn.functional.pad(weight, (0, 28)).view(5, 2, 64).abs().amax(-1, keepdim=True) / 127
    error = torch.nn.functional.pad(back - weight, (0, 28)).view(5, 2, 64).abs()
    assert (error <= step * 0.57).all()  # half a step, and the rounding of the scale to float16 at 127 steps
    assert not back[2].any()


def test_bad_linear_arguments_are_named(device):
    x, packed, *_ = problem(device, "bf16", 32, 64, 2)
    with pytest.raises(ValueError, match="packed: got shape"):
        form.linear(x, packed, 33)
    with pytest.raises(ValueError, match="format: got"):
        form.pack_linear(x, "int4")
    with pytest.raises(TypeError, match="bias: got dtype"):
        form.linear(x, packed, 32, torch.zeros(32, dtype=torch.float16, device=device))


@pytest.mark.parametrize("n,dtype", [(64, torch.float32), (37, torch.float16), (100, torch.bfloat16)])
def test_norm(device, n, dtype):
    torch.manual_seed(0)
    x, residual = torch.randn(2, 3, n, device=device)
    weight = torch.randn(n, device=device).to(dtype)
    want = norm_reference.rms_norm(x, weight, 1e-5)
    got = rms_norm(x, weight, 1e-5)
    assert got.dtype == dtype
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(got.float(), want, rtol=eps if dtype != torch.float32 else 1e-5, atol=1e-6)
    y, total = add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(total, x + residual)
    assert torch.equal(y, rms_norm(total, weight, 1e-5)) and torch.equal(rms_norm(x[1:2], weight, 1e-5), got[1:2])


def test_embedding(device):
    torch.manual_seed(0)
    table = torch.randn(11, 70, device=device).half()
    ids = torch.tensor([3, 10, 0, 3], device=device)
    assert torch.equal(embedding(ids, table), embedding_reference.embedding(ids, table))
    assert embedding(torch.tensor([11, -1], device=device), table).isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("heads,dim", [((3, 1), 24), ((4, 2), 16)])
def test_rope_append(device, dtype, heads, dim):
    torch.manual_seed(0)
    qkv = torch.randn(5, (heads[0] + 2 * heads[1]) * dim, device=device)
    angle = torch.outer(torch.arange(40.0), torch.rand(dim // 2)).to(device)
    positions = torch.tensor([3, 39, 0, 7, 7], dtype=torch.int32, device=device)
    slots = torch.tensor([13, -1, 0, 23, 8], device=device)
    caches = [torch.full((3, 8, heads[1], dim), -7.0, dtype=dtype, device=device) for _ in range(4)]
    q = rope_append(qkv, angle.cos(), angle.sin(), positions, slots, *caches[:2])
    want = rope_reference.rope_append(qkv, angle.cos(), angle.sin(), positions, slots, *caches[2:])
    tolerance = 1e-6 if dtype == torch.float32 else torch.finfo(dtype).eps
    torch.testing.assert_close(q.float(), want, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(caches[0], caches[2], rtol=tolerance, atol=tolerance)
    assert torch.equal(caches[1], caches[3])


@pytest.mark.parametrize("moves", [([9, 12, -1, 30, 10], [8, 9, 3, 31, 2]), ([5, 6, 7], [6, 7, 5]), ([3], [3])])
def test_kv_copy_moves_as_if_at_once(device, moves):
    torch.manual_seed(0)
    caches = torch.randn(2, 3, 4, 8, 2, 24, device=device).half()
    want = caches.clone()
    sources, targets = (torch.tensor(x, device=device) for x in moves)
    kv_copy(caches[0], caches[1], sources, targets)
    kv_copy_reference.kv_copy(want[0], want[1], sources, targets)
    assert torch.equal(caches, want)
