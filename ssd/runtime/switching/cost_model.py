"""What a pass costs by its rows, and the speed that follows from it."""

from dataclasses import dataclass

LONGEST_CHAIN = 8  # tokens of a branch that the formulas try


@dataclass(frozen=True)
class Costs:
    """Seconds of a pass by its rows.

    together: target and draft take turns on all cores. apart: each works on cores of its own, at the same time.
    """

    target_together: dict[int, float]
    draft_together: dict[int, float]
    target_apart: dict[int, float]
    draft_apart: dict[int, float]

    def sd(self, acceptance: float, sequences: int = 1) -> float:
        """Tokens per second and sequence of synchronous speculation at the best length of a chain, 0 included."""
        t, d = self.target_together, self.draft_together
        return max(
            expected(acceptance, k) / (at(t, sequences * (k + 1)) + k * at(d, sequences))
            for k in range(LONGEST_CHAIN + 1)
        )

    def ssd(self, acceptance: float, hit_rate: float, depth: int, branches: int, sequences: int = 1) -> float:
        """Tokens per second and sequence of two lanes (arXiv 2603.03251, theorem 7) at the best length up to depth.
        After a miss the target waits while the draft drafts again."""
        t, d = self.target_apart, self.draft_apart

        def speed(k: int) -> float:
            draft = (k + 1) * at(d, branches)
            retry = (1 - hit_rate) * k * at(d, sequences)
            return expected(acceptance, k) / (max(at(t, sequences * (k + 1)), draft) + retry)

        return max(map(speed, range(1, depth + 1)))


def expected(acceptance: float, k: int) -> float:
    """Expected tokens of a round with a chain of k; acceptance: the chance of each after those before it."""
    return sum(acceptance**i for i in range(k + 1))


def at(times: dict[int, float], rows: int) -> float:
    """Seconds of a pass of so many rows, linear between the numbers of rows that were measured and beyond them."""
    known = sorted(times)
    i = next((i for i in range(1, len(known) - 1) if rows <= known[i]), len(known) - 1)
    a, b = known[i - 1], known[i]
    return max(times[a] + (times[b] - times[a]) * (rows - a) / (b - a), 1e-9)
