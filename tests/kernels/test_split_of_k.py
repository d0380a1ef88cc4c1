"""How GPUs split K is a function of the shape of the whole matrix, and the packed weight has it."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ssd.kernels import pack_linear
from ssd.kernels.linear import length_of_part, split_of_k

SHAPES = [(576, 576), (576, 1536), (4096, 14336), (32, 64), (128256, 4096), (1024, 8191), (8192, 28672), (7, 1)]


@pytest.mark.parametrize("n,k", SHAPES)
def test_parts_cover_k_without_an_empty_one(n, k):
    parts, length = split_of_k(n, k)
    assert length % 128 == 0 and (parts - 1) * length < k <= parts * length
    assert length == length_of_part(k, parts)


@pytest.mark.parametrize("n,k", SHAPES)
@pytest.mark.parametrize("format", ["bf16", "int8"])
def test_the_packed_weight_of_some_rows_has_the_split_of_all(n, k, format):
    with FakeTensorMode(allow_non_fake_inputs=True):
        weight = torch.empty(min(n, 16), k, device="cuda")
        assert pack_linear(weight, format, n).shape[:2] == (1, split_of_k(n, k)[0])


def test_the_cpu_packs_some_rows_as_it_packs_all():
    weight = torch.randn(64, 80)
    assert torch.equal(pack_linear(weight[16:48], "int8", 64), pack_linear(weight, "int8")[1:3])
