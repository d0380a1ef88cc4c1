"""The speeds that bench.decode measured, beside those which follow from the costs of single passes that it measured."""

from dataclasses import dataclass

import numpy as np
import simpy

from ssd.runtime.costs import at

from .lanes import Plan, Replica, Steady, Tally, simulate
from .outcomes import from_rates
from .statistics import read

DEPTH = 4  # tokens of a branch that ssd prepares, where nothing else is said
COLUMNS = ["precision", "cores", "workload", "mode", "measured", "predicted", "error", "tokens a round", "hit_rate"]


@dataclass(frozen=True)
class Measured:
    """Seconds of passes by rows, linear between those that were timed. overhead: of the engine, for a pass."""

    target: dict[int, float]
    draft_times: dict[int, float]
    overhead: float

    def verify(self, sequences: int, rows: int) -> float:
        return at(self.target, rows) + self.overhead

    def draft(self, sequences: int, rows: float) -> float:
        return at(self.draft_times, rows)


@dataclass
class Replay(Replica):
    """Synchronous speculation whose shape adapts: (tokens, accepted ones) of a round as they were met, and passes of
    the draft for a round that speculates."""

    shapes: tuple[tuple[int, int], ...] = ()
    chances: tuple[float, ...] = ()
    passes: float = 0.0
    rows: float = 1.0

    def sd(self, live):
        (sequence,) = live
        nodes, accepted = self.shapes[self.rng.choice(len(self.shapes), p=self.chances)]
        sequence.depth = nodes
        begin = self.env.now
        for _ in range(int(self.passes + self.rng.random()) if nodes else 0):
            yield from self.draft(1, self.rows)
        self.tally.wait += self.env.now - begin
        yield from self.verify(live)
        self.emit(sequence, accepted + 1)


def overhead(counts: dict) -> float:
    """Seconds of a plain decoding pass beside its forward pass."""
    return (counts["decode_seconds"] - counts["decode_forward_seconds"]) / counts["decode_passes"]


def sd(costs: dict, own: float, counts: dict, rounds: int, seed: int) -> Tally:
    """Synchronous speculation on all cores."""
    shapes = {tuple(map(int, name.split())): n for name, n in counts["shapes"].items()}
    whole, speculating = sum(shapes.values()), sum(n for (nodes, _), n in shapes.items() if nodes)
    env, times = simpy.Environment(), Measured(costs["target_together"], costs["draft_together"], own)
    replica = Replay(
        env, times, Plan("sd", 1), None, Steady(1, rounds), np.random.default_rng(seed), Tally(),
        tuple(shapes), tuple(n / whole for n in shapes.values()),
        counts["draft_passes"] / max(speculating, 1), counts["draft_rows"] / max(counts["draft_passes"], 1),
    )  # fmt: skip
    env.run(env.process(replica.run()))
    return replica.tally


def ssd(costs: dict, own: float, counts: dict, rounds: int, seed: int) -> Tally:
    """Two lanes on cores of their own, at the rates of acceptance and of hits that were met."""
    accept = [a / p for a, p in zip(counts["accepted"], counts["proposed"], strict=False)] or [0.0]
    tried = counts["hits"] + counts["misses"]
    outcomes = from_rates(accept, counts["hits"] / max(tried, 1), DEPTH)
    branches = max(round(counts["draft_rows"] / max(counts["draft_passes"], 1)), 1)
    wait = "any" if 2 * counts["retries"] > counts["misses"] else "never"
    times = Measured(costs["target_apart"], costs["draft_apart"], own)
    return simulate(times, Plan("ssd", DEPTH, branches, whole=False, wait=wait), outcomes, 1, rounds, seed)


def rows(path: str, rounds: int, seed: int = 0) -> list[dict]:
    """precision, cores, workload, mode, measured (tokens a second: all tokens of the prompts by their time),
    predicted, error (relative), tokens a round, hit_rate. Raises ValueError that names the file and what it lacks."""
    report = read(path)
    try:
        found = _rows(report, rounds, seed)
    except (KeyError, TypeError, AttributeError, ZeroDivisionError):
        found = []
    if not found:
        raise ValueError(
            f"{path}: holds no costs with counts of ar beside sd or ssd, wanted the --json of "
            "`python -m bench.decode --modes ar,sd,ssd`"
        )
    return found


def _rows(report: dict, rounds: int, seed: int) -> list[dict]:
    costs = {
        (c["precision"], c["cores"]): {
            name: {int(n): float(t) for n, t in c[name].items()}
            for name in ("target_together", "draft_together", "target_apart", "draft_apart")
        }
        for c in report["costs"]
    }
    ours = [r for r in report["rows"] if r["system"] == "ssd" and r.get("counts")]
    plain = {(r["precision"], r["cores"], r["workload"]): r["counts"] for r in ours if r["mode"] == "ar"}
    out = []
    for r in ours:
        key = (r["precision"], r["cores"], r["workload"])
        if key not in plain or key[:2] not in costs or r["mode"] not in ("ar", "sd", "ssd"):
            continue
        own, counts, measured = overhead(plain[key]), r["counts"], costs[key[:2]]
        if r["mode"] == "ar":
            times = Measured(measured["target_together"], measured["draft_together"], own)
            tally = simulate(times, Plan("ar"), rounds=10)
        else:
            tally = (sd if r["mode"] == "sd" else ssd)(measured, own, counts, rounds, seed)
        speed = counts["decode_tokens"] / counts["decode_seconds"]
        row = dict(zip(COLUMNS, (*key, r["mode"], speed, tally.speed, tally.speed / speed - 1), strict=False))
        out.append(row | {"tokens a round": tally.tokens / tally.rounds, "hit_rate": tally.hit_rate})
    return out


def verdict(rows: list[dict]) -> str:
    """How far off the predictions are, by mode."""
    errors = {}
    for r in rows:
        errors.setdefault(r["mode"], []).append(r["error"])
    return "Error by mode, mean and greatest: " + "; ".join(
        f"{mode} {100 * np.mean(e):+.1f} % and {100 * max(e, key=abs):+.1f} %" for mode, e in errors.items()
    )
