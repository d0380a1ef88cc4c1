"""What only the Triton kernels do; test_linear.py and similar tests check what they compute."""

import pytest
import torch

from ssd.kernels.embedding.triton import embedding
from ssd.kernels.linear import triton as form


def test_parts_of_k_cover_it_and_never_depend_on_rows():
    for n, k in ((576, 576), (576, 1536), (4096, 14336), (32, 64), (128256, 4096), (1024, 8191)):
        for swiglu in (False, True):
            parts, length = form.plan(n, k, swiglu)
            assert length % 64 == 0 and (parts - 1) * length < k <= parts * length


def test_int8_is_within_half_a_step(device):
    torch.manual_seed(0)
    weight = torch.randn(5, 100, device=device)
    weight[2] = 0
    packed = form.pack_linear(weight, "int8")  # [1, 16.5 * 128]
    quants, scales = packed.split([16 * 128, 64], 1)
    quants, scales = quants.contiguous().view(torch.int8).view(16, 2, 64), scales.contiguous().view(torch.float16)
    back = (quants * scales.float().view(16, 2, 1)).view(16, 128)[:5, :100]
    step = torch.nn.functional.pad(weight, (0, 28)).view(5, 2, 64).abs().amax(-1, keepdim=True) / 127
    error = torch.nn.functional.pad(back - weight, (0, 28)).view(5, 2, 64).abs()
    assert (error <= step * 0.57).all()  # half a step, plus the rounding of the scale to float16 at 127 steps
    assert not back[2].any()


def test_bad_linear_arguments_are_named(device):
    x, packed = torch.randn(2, 64, device=device), form.pack_linear(torch.randn(32, 64, device=device), "bf16")
    with pytest.raises(ValueError, match="packed: got shape"):
        form.linear(x, packed, 33)
    with pytest.raises(ValueError, match="format: got"):
        form.pack_linear(x, "int4")
    with pytest.raises(TypeError, match="bias: got dtype"):
        form.linear(x, packed, 32, torch.zeros(32, dtype=torch.float16, device=device))


def test_an_id_outside_of_the_table_gives_a_row_of_nan(device):
    table = torch.randn(11, 80, device=device).half()[:, :70]  # rows are apart
    out = embedding(torch.tensor([11, 3, -1], device=device), table)
    assert out[[0, 2]].isnan().all() and torch.equal(out[1], table[3].float())
