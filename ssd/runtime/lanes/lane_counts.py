"""What happened in the verify lane so far."""

from dataclasses import dataclass, field, fields

from ..engine.metrics import Recoveries

KINDS = ("local_retry", "rollback", "model_switch")


@dataclass
class LaneCounts:
    """Counts of rounds and outcomes, and what recoveries took."""

    rounds: int = 0
    hits: int = 0
    misses: int = 0
    verified_rows: int = 0
    wait_seconds: float = 0.0  # for speculations after a miss
    recoveries: dict[str, Recoveries] = field(default_factory=lambda: {kind: Recoveries() for kind in KINDS})

    def __add__(self, other: "LaneCounts") -> "LaneCounts":
        sums = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self) if f.name != "recoveries"}
        return LaneCounts(**sums, recoveries={k: self.recoveries[k] + other.recoveries[k] for k in KINDS})

    @property
    def hit_rate(self) -> float | None:
        """Share of hits among the outcomes, None before the first."""
        tried = self.hits + self.misses
        return self.hits / tried if tried else None

    def stats(self) -> dict:
        recoveries = {kind: found.stats() for kind, found in self.recoveries.items()}
        return {"hit_rate": self.hit_rate, "recoveries": recoveries}
