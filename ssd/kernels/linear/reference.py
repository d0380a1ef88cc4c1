"""Operators on the plain weight [N, K], where the others take it packed."""

import torch


def linear(x, weight, bias=None, residual=None):
    out = x.float() @ weight.float().T
    if bias is not None:
        out = out + bias.float()
    return out if residual is None else out + residual.float()


def linear_swiglu(x, weight, block=16):
    """silu(gate) * up; weight [N, K] holds gate and up in alternate blocks of `block` rows."""
    gate, up = linear(x, weight).unflatten(-1, (-1, 2, block)).unbind(-2)
    return (torch.nn.functional.silu(gate) * up).flatten(-2)


def interleave(gate, up, block=16):
    """Weight of linear_swiglu from gate and up [N / 2, K] each, N / 2 a multiple of `block`."""
    return torch.stack([gate.unflatten(0, (-1, block)), up.unflatten(0, (-1, block))], 1).flatten(0, 2)
