"""The speeds that bench.decode measured beside those that follow from the costs of single passes that it measured."""

from dataclasses import dataclass, field

import numpy as np
import simpy

from ssd.runtime.switching.cost_model import at

from .lanes import Plan, Replica, Sequence, Steady, Tally, simulate
from .statistics import read

COLUMNS = [
    "precision",
    "cores",
    "workload",
    "mode",
    "measured",
    "predicted",
    "error",
    "tokens_a_round",
    "hit_rate",
    "wait_ms",
    "wait_ms_measured",
]


@dataclass(frozen=True)
class Measured:
    """Measured times of passes, interpolated linearly between the numbers of rows that were timed."""

    target: dict[int, float]  # seconds of a pass of the target, by rows
    draft_times: dict[int, float]  # seconds of a pass of the draft, by rows
    overhead: float  # seconds of a round that the engine itself takes

    def verify(self, sequences: int, rows: int) -> float:
        return at(self.target, rows) + self.overhead

    def draft(self, sequences: int, rows: float) -> float:
        return at(self.draft_times, rows)


@dataclass
class Replay(Replica):
    """A replica with one sequence whose speculations adapt in length and shape: they are drawn from measured rounds."""

    shapes: dict[tuple[int, int], int] = field(default_factory=dict)  # (tokens, accepted): number of measured rounds
    passes: float = 0.0  # passes of the draft for a speculation of sd
    rows: float = 1.0  # rows of such a pass
    hit_rate: float = 0.0  # hit rate of ssd

    def shape(self, sequence: Sequence) -> int:
        """Draws the speculation of a round and returns how many of its tokens will be accepted."""
        rounds = np.array(list(self.shapes.values()), float)
        sequence.depth, accepted = list(self.shapes)[self.rng.choice(len(rounds), p=rounds / rounds.sum())]
        return accepted

    def sd(self, live):
        (sequence,) = live
        accepted = self.shape(sequence)
        begin = self.env.now
        for _ in range(int(self.passes + self.rng.random()) if sequence.depth else 0):
            yield from self.draft(1, self.rows)
        self.tally.wait += self.env.now - begin
        yield from self.verify(live)
        self.emit(sequence, accepted + 1)

    def ssd(self, live):
        self.accepted = self.shape(live[0])
        yield from super().ssd(live)

    def draw(self, rng, depth: int) -> tuple[int, bool]:
        """(accepted tokens, whether the outcome was prepared for), in place of Outcomes.draw: the number that was drawn
        with the speculation."""
        return self.accepted, bool(rng.random() < self.hit_rate)


def overhead(counts: dict) -> float:
    """Seconds of a round that the engine itself takes, beside drafting and the target's forward pass."""
    models = counts["decode_draft_seconds"] + counts["decode_forward_seconds"]
    return (counts["decode_seconds"] - models) / counts["decode_passes"]


def replay(mode: str, costs: dict, own: float, counts: dict, rounds: int, seed: int) -> Tally:
    """A run of sd on all cores, or of ssd with a core for the draft, at the measured shapes and hit rate."""
    shapes = {tuple(map(int, name.split())): n for name, n in counts["shapes"].items()}
    speculating = sum(n for (nodes, _), n in shapes.items() if nodes)
    length = sum(nodes * n for (nodes, _), n in shapes.items()) / max(speculating, 1)
    passes = counts["draft_passes"]
    each = counts["draft_rows"] / max(counts["draft_passes"], 1)
    where = "together" if mode == "sd" else "apart"
    times = Measured(costs[f"target_{where}"], costs[f"draft_{where}"], own)
    plan = Plan("sd", 1)
    hit_rate = 0.0
    if mode == "ssd":
        hit_rate = counts["hits"] / max(counts["hits"] + counts["misses"], 1)
        wait = "any" if 2 * counts["retries"] > counts["misses"] else "never"
        plan = Plan("ssd", max(round(length), 1), max(round(each), 1), whole=False, wait=wait)
    env = simpy.Environment()
    replica = Replay(
        env, times, plan, None, Steady(1, rounds), np.random.default_rng(seed), shapes=shapes,
        passes=passes / max(speculating, 1), rows=each, hit_rate=hit_rate,
    )  # fmt: skip
    replica.outcomes = replica
    env.run(env.process(replica.run()))
    return replica.tally


@dataclass(frozen=True)
class Run:
    """A row of the file."""

    key: tuple  # precision, cores, workload
    mode: str
    counts: dict  # counts and times of its rounds
    costs: dict[str, dict[int, float]]  # seconds of passes, by rows, measured beside it
    own: float  # seconds of a round that the engine itself takes

    def simulate(self, rounds: int, seed: int) -> Tally:
        if self.mode != "ar":
            return replay(self.mode, self.costs, self.own, self.counts, rounds, seed)
        times = Measured(self.costs["target_together"], self.costs["draft_together"], self.own)
        return simulate(times, Plan("ar"), rounds=10)


def runs(report: dict) -> list[Run]:
    """The rows of mode ar, sd and ssd for which the file also has costs."""
    costs = {
        (c["precision"], c["cores"], c["workload"]): {
            name: {int(n): float(t) for n, t in c[name].items()}
            for name in ("target_together", "draft_together", "target_apart", "draft_apart")
        }
        for c in report["costs"]
    }
    ours = [r for r in report["rows"] if r["system"] == "ssd" and r.get("counts") and r["mode"] in ("ar", "sd", "ssd")]
    keyed = [((r["precision"], r["cores"], r["workload"]), r["mode"], r["counts"]) for r in ours]
    return [Run(key, mode, c, costs[key], overhead(c)) for key, mode, c in keyed if key in costs]


def rows(path: str, rounds: int, seed: int = 0) -> list[dict]:
    """Rows with the keys of COLUMNS. measured and predicted: tokens a second, all tokens of the prompts by their time;
    error: relative; wait_ms and wait_ms_measured: the target's wait for its draft in a round. Raises ValueError that
    names the file and what it lacks."""
    report = read(path)
    try:
        found = runs(report)
    except (KeyError, TypeError, AttributeError, ZeroDivisionError):
        found = []
    if not found:
        raise ValueError(
            f"{path}: holds no costs beside counts of ar, sd or ssd, wanted the --json of "
            "`python -m bench.decode --modes ar,sd,ssd`"
        )
    return [_row(run, run.simulate(rounds, seed)) for run in found]


def _row(run: Run, tally: Tally) -> dict:
    counts = run.counts
    mode = run.mode
    speed = counts["decode_tokens"] / counts["decode_seconds"]
    row = dict(zip(COLUMNS, (*run.key, mode, speed, tally.speed, tally.speed / speed - 1), strict=False))
    row |= {"tokens_a_round": tally.tokens / tally.rounds, "hit_rate": tally.hit_rate}
    if mode != "ar":
        waited = counts["decode_draft_seconds" if mode == "sd" else "wait_seconds"]
        row |= {"wait_ms": 1e3 * tally.wait / tally.rounds, "wait_ms_measured": 1e3 * waited / counts["decode_passes"]}
    return row


def verdict(rows: list[dict]) -> str:
    """A sentence that says how far off the predictions are, by mode."""
    errors = {}
    for r in rows:
        errors.setdefault(r["mode"], []).append(r["error"])
    return "Error by mode, mean and greatest: " + "; ".join(
        f"{mode} {100 * np.mean(e):+.1f} % and {100 * max(e, key=abs):+.1f} %" for mode, e in errors.items()
    )
