import backends
import pytest
import torch

from ssd.kernels import rms_norm
from ssd.kernels.norm import reference

ops = backends.fixture("cpu", "triton")


@pytest.mark.parametrize("rows,n", [(1, 64), (3, 576), (5, 37), (64, 1), (0, 16)])
def test_matches_reference_and_a_row_depends_on_itself(ops, rows, n):
    torch.manual_seed(0)
    x, residual = torch.randn(2, rows, n)
    for dtype in dict.fromkeys(map(ops.activations, ops.formats)):
        w = torch.randn(n).to(dtype)
        y, total = ops.rms_norm(x, w, 1e-5), x + residual
        rtol = 1e-5 if dtype == torch.float32 else torch.finfo(dtype).eps
        assert y.dtype == dtype
        torch.testing.assert_close(y.float(), reference.rms_norm(x, w, 1e-5), rtol=rtol, atol=1e-6)
        added = ops.add_rms_norm(x, residual, w, 1e-5)
        assert torch.equal(added[1], total) and torch.equal(added[0], ops.rms_norm(total, w, 1e-5))
        for row in range(0, rows, 3):
            assert torch.equal(ops.rms_norm(x[row : row + 1], w, 1e-5)[0], y[row])


def test_opcheck():
    x, w = torch.randn(4, 32), torch.randn(32)
    torch.library.opcheck(torch.ops.ssd.rms_norm.default, (x, w, 1e-5))
    torch.library.opcheck(torch.ops.ssd.add_rms_norm.default, (x, x.clone(), w, 1e-5))


def test_isas_give_the_same_bits(isas):
    torch.manual_seed(0)
    x, w = torch.randn(7, 576), torch.randn(576)
    results = []
    for isa in isas:
        torch.ops.ssd.set_isa(isa)
        results.append(rms_norm(x, w, 1e-5))
    assert all(torch.equal(r, results[0]) for r in results)


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="weight: got 3 elements, wanted 4"):
        rms_norm(torch.zeros(2, 4), torch.zeros(3), 1e-5)
    with pytest.raises(TypeError, match="x: got dtype"):
        rms_norm(torch.zeros(2, 4, dtype=torch.double), torch.zeros(4), 1e-5)
