"""RMSNorm after a residual addition, against torch's."""

import torch
import torch.nn.functional as F

from ssd.kernels import add_rms_norm

from . import Case, copies, twice_torch

EPS = 1e-5


def cases(device: str, _):
    if device == "cpu":
        yield from (case(rows, n) for n in (576, 2048, 4096, 8192) for rows in (1, 8, 64))


def case(rows: int, n: int) -> Case:
    many = copies(8 * rows * n)
    xs = torch.randn(many, rows, n)
    residuals = torch.randn(rows, n).repeat(many, 1, 1)
    weight = torch.randn(n)

    def run(turn):
        return add_rms_norm(xs[turn % many], residuals[turn % many], weight, EPS)[0]

    def torchs(turn):
        return F.rms_norm(xs[turn % many] + residuals[turn % many], (n,), weight, EPS)

    def check():
        total = xs[0].double() + residuals[0].double()
        exact = total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + EPS) * weight.double()
        return twice_torch(run(0), torchs(0), exact)

    return Case(
        op="add_rms_norm",
        shape=f"{rows}x{n}",
        run=run,
        bytes=4 * (4 * rows * n + n),
        flops=5 * rows * n,
        check=check,
        baselines={"torch": torchs},
    )
