"""RMSNorm after a residual, against torch's own."""

import torch
import torch.nn.functional as F

from ssd.kernels import add_rms_norm

from . import Case, copies, twice_torch

SHAPES = [(rows, n) for n in (576, 2048, 4096, 8192) for rows in (1, 8, 64)]


def cases(device: str):
    if device != "cpu":
        return
    for rows, n in SHAPES:
        many = copies(8 * rows * n)
        xs, residuals, weight = torch.randn(many, rows, n), torch.randn(rows, n).repeat(many, 1, 1), torch.randn(n)

        def run(turn, xs=xs, residuals=residuals, weight=weight):
            return add_rms_norm(xs[turn % len(xs)], residuals[turn % len(xs)], weight, 1e-5)[0]

        def torchs(turn, xs=xs, residuals=residuals, weight=weight):
            total = xs[turn % len(xs)] + residuals[turn % len(xs)]
            return F.rms_norm(total, weight.shape, weight, 1e-5)

        def check(run=run, torchs=torchs, total=xs[0].double() + residuals[0].double(), weight=weight.double()):
            exact = total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + 1e-5) * weight
            return twice_torch(run(0), torchs(0), exact)

        yield Case(
            op="add_rms_norm",
            shape=f"{rows}x{n}",
            run=run,
            bytes=4 * (4 * rows * n + n),
            flops=5 * rows * n,
            check=check,
            baselines={"torch": torchs},
        )
