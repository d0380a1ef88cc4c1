"""Acceptance and hits of a pair, known from published speeds, from a run of the engine, or as given."""

import json
from dataclasses import dataclass
from pathlib import Path

from .fit import Fit
from .outcomes import Outcomes, allocate, exponent_of, law
from .published import PAIRS, WORKLOADS


@dataclass(frozen=True)
class Statistics:
    """The two numbers that the law of hits has for a pair."""

    acceptance: float  # chance that a token is accepted if those before it were
    exponent: float  # exponent of the law of hits
    source: str  # where they come from

    def outcomes(self, k: int, branches: int = 0) -> Outcomes:
        """The Outcomes of chains of k tokens with `branches` branches in all, allocated by theorem 12."""
        return law(self.acceptance, self.exponent, self.fan_out(k, branches))

    def fan_out(self, k: int, branches: int) -> list[int]:
        return allocate(self.acceptance, self.exponent, k, branches)


def published(fit: Fit, target: str, draft: str, workload: str | None) -> Statistics:
    """The Statistics of a published pair on a workload, or their mean over workloads. Raises ValueError if the pair is
    not a published one."""
    for name, pair in PAIRS.items():
        if (pair.target, pair.draft) == (target.lower(), draft.lower()):
            a = fit.acceptance[name]
            mean = sum(a) / len(a)
            acceptance = mean if workload is None else a[WORKLOADS.index(workload)]
            return Statistics(acceptance, fit.exponent, f"fitted on {pair.name}, {workload or 'mean of its workloads'}")
    raise ValueError(
        f"--acceptance: nothing is published of {target} with {draft}; give a number, or --stats with a run of them"
    )


def from_run(path: str, exponent: float) -> Statistics:
    """The Statistics in a file that `python -m ssd.run --json` wrote. The hit rate of a run of ssd also determines the
    exponent; otherwise it is the one given. Raises ValueError that names the file and what it lacks."""
    report = read(path)
    stats = report.get("stats")
    config = report.get("config")
    a = stats.get("acceptance_rate") if isinstance(stats, dict) else None
    if not isinstance(config, dict) or not isinstance(a, (int, float)) or not 0 <= a <= 1:
        raise ValueError(f"{path}: holds no acceptance_rate, wanted the --json of a run with --mode sd, ssd or auto")
    a = min(float(a), 0.999)
    hit_rate = stats.get("hit_rate")
    each = config.get("fan_out")
    branches = config.get("branches")
    if isinstance(hit_rate, (int, float)) and 0 < hit_rate < 1 and (each or branches):
        k = config.get("k") or 4
        fan_out = [each] * (k + 1) if each else allocate(a, 1.0, k, branches)
        exponent = exponent_of(a, fan_out, hit_rate)
    return Statistics(a, exponent, path)


def read(path: str) -> dict:
    """The JSON object in a file. Raises ValueError that names the file."""
    try:
        value = json.loads(Path(path).read_bytes().decode())
    except OSError as e:
        raise ValueError(f"{path}: {e.strerror}") from None
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ValueError(f"{path}: is not a JSON object")
    return value
