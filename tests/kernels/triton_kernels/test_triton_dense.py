"""What only the Triton kernels do; test_linear.py and similar tests check what they compute."""

import pytest
import torch

from ssd.kernels.embedding.triton import embedding
from ssd.kernels.kv_copy import reference
from ssd.kernels.kv_copy import triton as kv_copy
from ssd.kernels.linear import triton as form


@pytest.mark.parametrize("format", ["bf16", "int8"])
def test_a_slice_of_the_panels_gives_the_bits_of_the_whole(device, format, monkeypatch):
    """Also where the slice alone would be split otherwise, and where one program sums all parts."""
    monkeypatch.setattr(form, "split_of_k", lambda n, k: (4, 128) if n > 64 else (1, 512))
    torch.manual_seed(0)
    weight, x = torch.randn(96, 500, device=device), torch.randn(3, 500, device=device).bfloat16()
    whole = form.pack_linear(weight, format)
    y, z = form.linear(x, whole, 96), form.linear_swiglu(x, whole, 96)
    assert torch.equal(form.pack_linear(weight[32:64], format, 96), whole[2:4])
    assert torch.equal(form.linear(x, whole[2:4], 32), y[:, 32:64])
    assert torch.equal(form.linear_swiglu(x, whole[2:4], 32), z[:, 16:32])
    assert not torch.equal(form.linear(x, form.pack_linear(weight[32:64], format), 32), y[:, 32:64])
    monkeypatch.setattr(form, "CHAINS", 16)
    assert torch.equal(form.linear(x, whole, 96), y) and torch.equal(form.linear_swiglu(x, whole, 96), z)


@pytest.mark.parametrize("format", ["fp32", "bf16", "int8"])
def test_a_row_has_the_same_bits_among_2_to_150_rows(device, format):
    """The rows are those where tiles change their size, and 150 have tiles of their own; K is split."""
    torch.manual_seed(0)
    dtype = torch.float32 if format == "fp32" else torch.bfloat16
    weight, x = torch.randn(32, 1100, device=device), torch.randn(150, 1100, device=device).to(dtype)
    packed = form.pack_linear(weight, format)
    assert packed.shape[1] == 2
    y, z = form.linear(x, packed, 32), form.linear_swiglu(x, packed, 32)
    for rows in (1, 2, 9, 17, 33, 128):
        assert torch.equal(form.linear(x[:rows], packed, 32), y[:rows]), rows
        assert torch.equal(form.linear_swiglu(x[:rows], packed, 32), z[:rows]), rows


def test_int8_is_within_half_a_step(device):
    torch.manual_seed(0)
    weight = torch.randn(5, 100, device=device)
    weight[2] = 0
    packed = form.pack_linear(weight, "int8")[0, 0]  # [1, 2112]
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


def test_layers_are_moved_in_turns_where_they_do_not_fit(device, monkeypatch):
    k, v = torch.randn(2, 5, 4, 16, 2, 24, device=device)
    moves = torch.tensor([[0, 1, 2, 63], [1, 2, 0, -1]], device=device)
    for held in (kv_copy.HELD, 2 * 2 * 4 * 48 * 4, 0):  # all layers, two, one
        monkeypatch.setattr(kv_copy, "HELD", held)
        ours, wanted = (k.clone(), v.clone()), (k.clone(), v.clone())
        kv_copy.kv_copy(*ours, *moves)
        reference.kv_copy(*wanted, *moves)
        assert torch.equal(ours[0], wanted[0]) and torch.equal(ours[1], wanted[1])
