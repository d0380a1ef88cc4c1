"""What bench.kernels measures: one module an operator, with `cases(device, chosen)` that makes its cases one at a time.

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
    agreement: float | None = None  # error of a baseline relative to run at most; None where both draw at random

    def usable(self) -> tuple[dict[str, Callable[[int], object]], dict[str, str]]:
        """The baselines that run here and compute the same, and why others do not."""
        usable, refused = {}, {}
        ours = self.run(0) if self.agreement is not None else None
        for name, call in self.baselines.items():
            try:
                theirs = call(0)
                if ours is None or relative_error(theirs.reshape(ours.shape), ours.double()) <= self.agreement:
                    usable[name] = call
                else:
                    refused[name] = "its result is another"
            except Exception as e:  # of whatever kind a foreign package has
                refused[name] = f"{type(e).__name__}: {e}"[:300]
        return usable, refused


def copies(size: int) -> int:
    """How many inputs of so many bytes make their use cold."""
    return ceil(cold_bytes() / size)


def relative_error(y, exact) -> float:
    return float((y.double() - exact).norm() / exact.norm())


ROUNDING = 2.0**-23  # of float32, relative


def twice_torch(ours, torchs, exact) -> bool:
    """Error at most twice that of torch's own computation in the same dtype, or of a rounding of float32, which torch
    is spared by chance where one factor decides; false for NaN. exact: float64."""
    return relative_error(ours, exact) <= 2 * max(relative_error(torchs, exact), ROUNDING)
