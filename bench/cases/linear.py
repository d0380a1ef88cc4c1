"""Packed linear layers on a GPU against torch's in bfloat16; bench.linear measures those on the CPU."""

import itertools
from collections.abc import Iterator

import torch
import torch.nn.functional as F

from ssd.kernels import linear, pack_linear

from ..linear import check
from ..shapes import BASE, ROWS, Size
from . import Case

COLD = 512 << 20  # bytes that no cache of a GPU holds


def cases(device: str, chosen: list[Size]) -> Iterator[Case]:
    """Cases for the models of the chosen sizes; one row and eight rows come first, since time may run out."""
    models = dict.fromkeys(size.model for size in chosen) if device != "cpu" else ()
    rows = sorted(ROWS, key=lambda r: r not in (1, BASE["rows"]))
    for r, format, m in itertools.product(rows, ("bf16", "int8"), models):
        for layer, (n, k) in m.layers.items():
            yield case(f"{m.name} {layer} {n} x {k} T={r} {format}", n, k, r, format, device)


def case(shape: str, n: int, k: int, rows: int, format: str, device: str) -> Case:
    weight = torch.randn(n, k, device=device) * k**-0.5
    copies = max(1, min(8, COLD // (2 * n * k))) if device != "cpu" else 2
    packed = [pack_linear(weight, format) for _ in range(copies)]
    plain = [weight.bfloat16() for _ in range(copies)]
    x = torch.randn(rows, k, device=device)
    rounded = x.bfloat16()

    by_torch = "torch bfloat16" if device == "cpu" else "cuBLAS (torch bfloat16)"

    def run(turn):
        return linear(x, packed[turn % copies], n)

    return Case(
        op="linear",
        shape=shape,
        run=run,
        bytes=packed[0].nbytes + 4 * rows * (n + k),
        flops=2 * rows * n * k,
        check=lambda: check(run(0), x, weight, format),
        baselines={by_torch: lambda turn: F.linear(rounded, plain[turn % copies])},
        backend="triton" if device != "cpu" else "cpu",
        agreement=0.02,
    )
