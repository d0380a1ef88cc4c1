"""The choice of the draft among two: recovery by model switch."""

from time import perf_counter

from ..engine.metrics import Recoveries
from ..engine.speculator import Round
from ..lanes.lane_counts import LaneCounts
from ..moving_average import MovingAverage
from .switch import Switch


class BackupDraft(Switch):
    """Two draft lanes, one with a draft and one with a larger draft.

    The larger one is tried where the first brings little, and kept while it gives more tokens per second. Where it does
    not, the first comes back, and the larger one is tried again much later.
    """

    WINDOW = 48  # rounds between two decisions
    LITTLE = 1.6  # accepted length below which the larger draft is tried
    MARGIN = 1.05  # by which the larger draft must be faster to be kept
    REST = 512  # rounds before it is tried again

    def __init__(self, draft, backup):
        super().__init__({"draft": draft, "backup": backup}, "draft")
        self.speed = {"draft": MovingAverage(0.5), "backup": MovingAverage(0.5)}
        self.rounds = self.tokens = 0
        self.began, self.rest = perf_counter(), 0
        self.switched = Recoveries()

    def observe(self, round: Round) -> None:
        super().observe(round)
        self.rounds += 1
        self.tokens += sum(len(part.emitted) for part in round)
        if self.rounds >= self.WINDOW:
            self._decide(self.tokens / max(self.rounds * len(round), 1))

    def _decide(self, length: float) -> None:
        """Choose the draft after a window of rounds; length: the mean accepted length in it."""
        now = perf_counter()
        self.speed[self.mode].add(self.tokens / (now - self.began))
        self.rest = max(self.rest - self.rounds, 0)
        mine, other = self.speed[self.mode].value, "backup" if self.mode == "draft" else "draft"
        theirs = self.speed[other].value
        if self.mode == "draft":
            wanted = length < self.LITTLE and not self.rest
        else:
            wanted = theirs is not None and mine < self.MARGIN * theirs
        if wanted:
            if self.mode == "backup":
                self.rest = self.REST
            self.switch(other)
            self.switched.add(perf_counter() - now)
            if self.trace:
                self.trace.span("verify", f"model switch to {other}", now, perf_counter(), accepted_length=length)
        self.rounds = self.tokens = 0
        self.began = perf_counter()

    @property
    def counts(self) -> LaneCounts:
        """What happened in both lanes."""
        counts = LaneCounts()
        for part in self.parts.values():
            counts += part.counts
        counts.recoveries["model_switch"] += self.switched
        return counts

    def stats(self) -> dict:
        """Times are those of the part in use, rates and recoveries those of both."""
        return self.current.stats() | self.counts.stats()
