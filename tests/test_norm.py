import pytest
import torch

from ssd.kernels import add_rms_norm, rms_norm
from ssd.kernels.norm import reference


@pytest.mark.parametrize("rows,n", [(1, 64), (3, 576), (5, 37), (64, 1), (0, 16)])
def test_matches_reference(rows, n):
    torch.manual_seed(0)
    x, r, w = torch.randn(rows, n), torch.randn(rows, n), torch.randn(n)
    torch.testing.assert_close(rms_norm(x, w, 1e-5), reference.rms_norm(x, w, 1e-5), rtol=1e-5, atol=1e-6)
    for got, want in zip(add_rms_norm(x, r, w, 1e-5), reference.add_rms_norm(x, r, w, 1e-5), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


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
