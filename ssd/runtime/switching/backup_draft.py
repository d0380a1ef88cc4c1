"""The choice of the draft among two: recovery by model switch."""

from time import perf_counter

from ..moving_average import MovingAverage
from .switch import Switch


class BackupDraft(Switch):
    """Two draft lanes, of a draft and of a larger one, which is tried where the first brings little and kept while it
    gives more tokens a second; it goes back when it does not, and tries again much later."""

    WINDOW, LITTLE, MARGIN, REST = 48, 1.6, 1.05, 512

    def __init__(self, draft, backup):
        super().__init__({"draft": draft, "backup": backup}, "draft")
        self.speed = {"draft": MovingAverage(0.5), "backup": MovingAverage(0.5)}
        self.rounds = self.tokens = 0
        self.began, self.rest = perf_counter(), 0
        self.switched: list[float] = []  # seconds of each change

    def observe(self, plan, trees, paths, offsets, features, seconds: float) -> None:
        super().observe(plan, trees, paths, offsets, features, seconds)
        self.rounds += 1
        self.tokens += sum(len(path) + 1 for path in paths if path is not None)
        if self.rounds >= self.WINDOW:
            self._decide(self.tokens / max(self.rounds * len(plan), 1))

    def _decide(self, length: float) -> None:
        """After a window of rounds with that accepted length."""
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
            self.switched.append(perf_counter() - now)
            if self.trace:
                self.trace.span("verify", f"model switch to {other}", now, perf_counter(), accepted_length=length)
        self.rounds = self.tokens = 0
        self.began = perf_counter()

    @property
    def hits(self) -> int:
        return sum(part.hits for part in self.parts.values())

    @property
    def misses(self) -> int:
        return sum(part.misses for part in self.parts.values())

    def stats(self) -> dict:
        """Of the part in use, rates and recoveries of both."""
        both = [part.stats() for part in self.parts.values()]
        tried, n = self.hits + self.misses, len(self.switched)
        recoveries = {}
        for name in both[0]["recoveries"]:
            pairs = [s["recoveries"][name] for s in both if s["recoveries"][name]["count"]]
            count = sum(p["count"] for p in pairs)
            total = sum(p["count"] * p["mean_ms"] for p in pairs)
            recoveries[name] = {"count": count, "mean_ms": total / count if count else None}
        recoveries["model_switch"] = {"count": n, "mean_ms": 1e3 * sum(self.switched) / n if n else None}
        return self.current.stats() | {"hit_rate": self.hits / tried if tried else None, "recoveries": recoveries}
