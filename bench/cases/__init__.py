"""What bench.kernels measures: one module an operator, with `cases(device)` that makes its cases one at a time.

A case holds its inputs, so each is dropped before the next is made. Inputs are made as often as it takes for no cache
to hold them, and `run(turn)` and the baselines choose among them by the number of the turn.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil

from ..roofline import cold_bytes


@dataclass
class Case:
    op: str
    shape: str
    run: Callable[[int], object]
    bytes: int  # read and written at the least, counted from the shapes
    flops: int
    check: Callable[[], bool]  # run against the reference, by the operator's own rule
    baselines: dict[str, Callable[[int], object]] = field(default_factory=dict)
    prepare: Callable[[int], object] | None = None  # before each run, not timed
    backend: str = "cpu"


def copies(size: int) -> int:
    """How many inputs of so many bytes make their use cold."""
    return ceil(cold_bytes() / size)


def relative_error(y, exact) -> float:
    return float((y.double() - exact).norm() / exact.norm())


def twice_torch(ours, torchs, exact) -> bool:
    """Error at most twice that of torch's own computation in the same dtype; false for NaN. exact: float64."""
    return relative_error(ours, exact) <= 2 * relative_error(torchs, exact)
