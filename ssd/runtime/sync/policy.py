"""How much to speculate: estimates of acceptance and of costs, learnt from every round."""

from ..moving_average import MovingAverage
from .calibration import Calibration


class Policy:
    """How long and how wide trees are.

    depth: tokens of a branch at most; width: children of a node at most; nodes: tokens of a tree at most; adaptive:
    stop where a token costs more than it is expected to bring; otherwise branches always have `depth` tokens and only
    the root has `width` children.

    Times are in units of a plain decoding step of the same batch. A token of a tree costs a row of the verification,
    and one that has children a row of the draft too. It is worth its chance of acceptance times what a token costs at
    present.
    """

    RUN = 8  # plain steps in a row that time a plain step
    SETTLE = 4  # the first ones of them, which are slower and do not count
    REST = ((1.5, 256), (1.25, 96), (0.0, 32))  # (speed, rounds of speculation before the next run from that speed on)
    SURE = 3  # runs before which the shortest rest is taken

    def __init__(self, depth: int = 5, width: int = 1, nodes: int = 7, adaptive: bool = True):
        self.depth, self.width, self.nodes, self.adaptive = depth, width, nodes, adaptive
        self.calibration = Calibration()
        self.plain, self.per_row, self.per_draft_step = MovingAverage(0.25), MovingAverage(), MovingAverage()  # seconds
        self.run = self.runs = 0
        self.since_plain = self.REST[0][1]

    # ---- costs ----

    def verified(self, rows: int, speculated: int, seconds: float) -> None:
        """Learn from a pass of so many decoding sequences with so many speculated nodes."""
        if not speculated:
            self.run += 1
            if self.run > self.SETTLE:
                self.plain.add(seconds)
            if self.run >= self.RUN:
                self.runs += self.run == self.RUN
                self.since_plain = 0
        else:
            self.run = 0
            self.since_plain += 1
            if self.plain.value is not None:
                self.per_row.add(max(seconds - self.plain.value, 0.0) / speculated)

    def drafted(self, steps: int, seconds: float) -> None:
        if steps:
            self.per_draft_step.add(seconds / steps)

    def costs(self, sequences: int) -> tuple[float, float]:
        """The cost of a row of the verification, and of a draft step, in plain steps per token that these give."""
        plain = self.plain.get(1.0)
        known = self.plain.value is not None
        row = self.per_row.get(0.1 * plain) / plain if known else 0.1
        step = self.per_draft_step.get(0.1 * plain) / plain if known else 0.1
        return row * sequences, step

    # ---- decisions ----

    def wants_plain(self, speed: float) -> bool:
        """Whether this round should decode plainly, to time that; speed: what speculation gave lately."""
        rest = next(rest for least, rest in self.REST if speed >= least and self.runs >= self.SURE or not least)
        return self.adaptive and (self.plain.value is None or self.since_plain >= rest)

    def thresholds(self, speed: float, sequences: int) -> tuple[float, float]:
        """(least chance of a token to be verified, least chance to be extended) at `speed` tokens in a plain step."""
        if not self.adaptive:
            return -1.0, -1.0
        row, step = self.costs(sequences)
        return min(row * speed, 0.9), min((row + step) * speed, 0.95)


class Trials:
    """When speculation that did not pay is tried again.

    The first time after FIRST rounds without it, then after twice as many each time, up to MOST. All sequences share
    one count: a trial costs most in a new sequence, whose text the draft has not read.
    """

    FIRST = 12  # rounds
    MOST = 96

    def __init__(self):
        self.skipped, self.patience = 0, self.FIRST

    def due(self) -> bool:
        self.skipped += 1
        if self.skipped <= self.patience:
            return False
        self.skipped, self.patience = 0, min(2 * self.patience, self.MOST)
        return True

    def paid(self) -> None:
        """Start anew: the last trial paid."""
        self.skipped, self.patience = 0, self.FIRST


class Record:
    """What speculation brought one sequence lately. It starts at what speculation brought to others before."""

    PAYS = 1.02  # speed from which on speculation pays

    def __init__(self, before: "Record | None" = None, rate: float = 0.06):
        emitted, cost = (before.emitted.value, before.cost.value) if before else (1.5, 1.15)
        worth = 0 if before else 4
        self.emitted = MovingAverage(rate, emitted, worth)  # tokens of a round
        self.cost = MovingAverage(rate, cost, worth)  # its time in plain steps
        self.trials, self.tried = before.trials if before else Trials(), False

    def speed(self) -> float:
        """Tokens in the time of a plain step."""
        return self.emitted.value / max(self.cost.value, 1e-3)

    def pays(self) -> bool:
        """Whether to speculate in this round."""
        if self.speed() < self.PAYS:
            self.tried = self.trials.due()
            return self.tried
        if self.tried:
            self.trials.paid()
        self.tried = False
        return True

    def add(self, emitted: int, cost: float) -> None:
        self.emitted.add(emitted)
        self.cost.add(cost)
