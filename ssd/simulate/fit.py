"""The fit of constants to published speeds. One set fits all rows of plain and of speculative decoding; then the SSD
rows of one pair fit the exponent of the law of hits. No constant belongs to a single row."""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from . import formula
from .hardware import gpu
from .models import model
from .outcomes import Outcomes, law
from .published import CONTEXT, PAIRS, SPEEDS, STEPS, WORKLOADS, Pair
from .roofline import Constants, Roofline

START = (0.8, 4e-3, 1e-3, 2.5, 2.0, 2.0, 2.5, 0.0, 0.5)
LOW = (0.3, 0.0, 0.0, -9, -9, -9, -9, -9, 0.0)
HIGH = (1.0, 50e-3, 20e-3, 9, 9, 9, 9, 9, 3.0)
SCALE = (0.1, 1e-3, 1e-3, 1, 1, 1, 1, 1, 1)


@dataclass(frozen=True)
class Fit:
    """The fitted constants. The log-odds of the second pair's acceptance are a line over those of the first."""

    constants: Constants
    acceptance: dict[str, tuple[float, ...]]  # chance that a token is accepted, by pair and workload
    shift: float  # of that line
    slope: float  # of that line
    exponent: float  # of the law of hits

    def times(self, pair: Pair) -> Roofline:
        return times_of(pair, self.constants)

    def outcomes(self, name: str, workload: int, k: int, fan_out: int) -> Outcomes:
        """The Outcomes of a published pair on a workload, given by its number."""
        return law(self.acceptance[name][workload], self.exponent, [fan_out] * (k + 1))


def times_of(pair: Pair, constants: Constants) -> Roofline:
    return Roofline(gpu(pair.gpu), model(pair.target), model(pair.draft), constants, pair.gpus, CONTEXT)


def unpack(x) -> tuple[Constants, dict[str, tuple[float, ...]]]:
    """(Constants, acceptance by pair and workload) of a vector: log-odds z for the first pair, shift + slope z for the
    second."""
    z = np.array(x[3 : 3 + len(WORKLOADS)])
    shift, slope = x[-2:]
    chances = {"llama": 1 / (1 + np.exp(-z)), "qwen": 1 / (1 + np.exp(-shift - slope * z))}
    return Constants(*map(float, x[:3])), {name: tuple(map(float, a)) for name, a in chances.items()}


def plain_and_speculative(constants: Constants, acceptance: dict) -> list[float]:
    """The formulas' speeds for the AR and SD rows, pair by pair, then their times for the second pair's passes."""
    out = []
    for name, pair in PAIRS.items():
        times = times_of(pair, constants)
        out.append(formula.ar(times))
        for a in acceptance[name]:
            out.append(formula.sd(times, law(a, 1.0, [0] * (pair.k_sd + 1)), pair.k_sd))
    return [*out, times.verify(1, 6), times.draft(1, 18)]


def published_rows(speeds: dict, steps: dict | None) -> list[float]:
    pairs = [v for name in PAIRS for v in (speeds[name]["ar"][0], *speeds[name]["sd"])]
    return [*pairs, steps["verify"], steps["draft"]] if steps else pairs


def fit(speeds: dict = SPEEDS, steps: dict | None = STEPS) -> Fit:
    """The Fit by least squares of relative errors.

    speeds: tokens a second, by pair, mode and workload. steps: seconds of a verification and of a step of the draft's
    tree; without them (None), a slow draft looks like a bad one.
    """
    wanted = np.array(published_rows(speeds, steps))
    solved = least_squares(
        lambda x: np.array(plain_and_speculative(*unpack(x))[: len(wanted)]) / wanted - 1,
        START, bounds=(LOW, HIGH), x_scale=SCALE, xtol=1e-12, ftol=1e-12, gtol=1e-12,
    )  # fmt: skip
    constants, acceptance = unpack(solved.x)
    pair = PAIRS["llama"]
    times = times_of(pair, constants)

    def errors(x):
        predicted = [
            formula.ssd(times, law(a, x[0], [pair.fan_out] * (pair.k_ssd + 1)), pair.k_ssd,
                        pair.fan_out * (pair.k_ssd + 1), stalls=True)
            for a in acceptance["llama"]
        ]  # fmt: skip
        return np.array(predicted) / np.array(speeds["llama"]["ssd"]) - 1

    exponent = float(least_squares(errors, [1.0], bounds=([0.01], [20.0])).x[0])
    return Fit(constants, acceptance, float(solved.x[-2]), float(solved.x[-1]), exponent)
