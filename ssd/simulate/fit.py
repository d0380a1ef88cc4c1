"""Constants from published speeds: one set for all rows of plain and of speculative decoding, then one exponent of the
law of hits from the SSD rows of one pair. Nothing is set row by row."""

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
    """constants: of all passes. acceptance: by pair and workload, a line for the second pair (shift, slope) over the
    log-odds of the first. exponent: of the law of hits."""

    constants: Constants
    acceptance: dict[str, tuple[float, ...]]
    shift: float
    slope: float
    exponent: float

    def times(self, pair: Pair) -> Roofline:
        """Times of a published pair."""
        return times_of(pair, self.constants)

    def outcomes(self, name: str, workload: int, k: int, fan_out: int) -> Outcomes:
        """Outcomes of a published pair on a workload by number."""
        return law(self.acceptance[name][workload], self.exponent, [fan_out] * (k + 1))


def times_of(pair: Pair, constants: Constants) -> Roofline:
    return Roofline(gpu(pair.gpu), model(pair.target), model(pair.draft), constants, pair.gpus, CONTEXT)


def unpack(x) -> tuple[Constants, dict[str, tuple[float, ...]]]:
    """Costs, and acceptance by pair and workload: log-odds z of the first pair, shift + slope z of the second."""
    z = np.array(x[3 : 3 + len(WORKLOADS)])
    shift, slope = x[-2:]
    chances = {"llama": 1 / (1 + np.exp(-z)), "qwen": 1 / (1 + np.exp(-shift - slope * z))}
    return Constants(*map(float, x[:3])), {name: tuple(map(float, a)) for name, a in chances.items()}


def plain_and_speculative(constants: Constants, acceptance: dict) -> list[float]:
    """What the formulas give for the AR and SD rows, pair by pair, then for the published passes of the second pair."""
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
    """Least squares of relative errors. speeds: pair to mode to tokens a second by workload; steps: seconds of a
    verification and of a step of the draft's tree, without which (None) nothing tells a slow draft from a bad
    one.
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
