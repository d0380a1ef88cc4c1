"""What bench.kernels measures: one module for each operator, whose `cases(device, chosen)` makes its cases in turn.

A case holds its inputs, so each is dropped before the next is made. There are enough copies of the inputs that no cache
holds them all; `run(turn)` and the baselines choose among them by the number of the turn.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil

from ..process import cold_bytes


@dataclass
class Case:
    op: str
    shape: str
    run: Callable[[int], object]
    bytes: int  # fewest bytes that have to be read and written, counted from the shapes
    flops: int
    check: Callable[[], bool]  # compares run with the reference, by the operator's own rule
    baselines: dict[str, Callable[[int], object]] = field(default_factory=dict)
    prepare: Callable[[int], object] | None = None  # called before each run, not timed
    backend: str = "cpu"
    agreement: float | None = None  # largest relative error of a baseline against run; None if both draw at random

    def usable(self) -> tuple[dict[str, Callable[[int], object]], dict[str, str]]:
        """(baselines that run here and agree with `run`, reasons why the others do not, by name)."""
        usable = {}
        refused = {}
        ours = self.run(0) if self.agreement is not None else None
        for name, call in self.baselines.items():
            try:
                theirs = call(0)
                if ours is None or relative_error(theirs.reshape(ours.shape), ours.double()) <= self.agreement:
                    usable[name] = call
                else:
                    refused[name] = "its result is another"
            except Exception as e:  # a foreign package may raise anything
                refused[name] = f"{type(e).__name__}: {e}"[:300]
        return usable, refused


def copies(size: int) -> int:
    """The number of copies of an input of `size` bytes that makes every use of it cold."""
    return ceil(cold_bytes() / size)


def relative_error(y, exact) -> float:
    return float((y.double() - exact).norm() / exact.norm())


ROUNDING = 2.0**-23  # relative error of a rounding of float32


def twice_torch(ours, torchs, exact) -> bool:
    """Whether our error is at most twice that of torch's own computation in the same dtype, or twice a rounding of
    float32, since torch may be exact by chance; false for NaN. exact: the result in float64."""
    return relative_error(ours, exact) <= 2 * max(relative_error(torchs, exact), ROUNDING)
