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


def dequantise(blocks):
    """float32 [N, K] from blocks of a GGUF file, uint8 [N, K / 32, bytes]: 34 is q8_0, 18 q4_0, 20 q4_1."""
    ends = {34: 2, 18: 2, 20: 4}[blocks.shape[2]]
    scales, quants = blocks[..., :ends].contiguous().view(torch.float16).float(), blocks[..., ends:]
    if ends == 2 and quants.shape[2] == 32:
        values = quants.view(torch.int8) * scales
    else:
        q = torch.cat([quants & 15, quants >> 4], 2)  # inputs 0 to 15 are in the low halves
        values = scales[..., :1] * q + scales[..., 1:] if ends == 4 else scales * (q.float() - 8)
    return values.flatten(1)


def quantise_rows(x, group=32):
    """x as int8 weights see it: whole multiples of a scale for each row and `group` inputs."""
    groups = torch.nn.functional.pad(x, (0, -x.shape[1] % group)).unflatten(1, (-1, group))
    scale = groups.abs().amax(-1, keepdim=True) / 127
    return ((groups / scale.where(scale > 0, 1)).round() * scale).flatten(1)[:, : x.shape[1]]
