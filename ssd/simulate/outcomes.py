"""Outcomes of a verification: how many tokens are accepted, and whether the draft had prepared for that outcome."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Outcomes:
    """Chances of the outcomes of a verification."""

    accept: tuple[float, ...]  # that a token is accepted if those before it were, by position
    inner: tuple[float, ...]  # that the bonus token after a rejection was prepared for, by accepted tokens
    leaf: tuple[float, ...]  # that the bonus token after full acceptance was prepared for, by length of the speculation

    def lengths(self, k: int) -> np.ndarray:
        """Chances of 0 to k accepted tokens, float64 [k + 1]."""
        arrive = np.cumprod([1.0, *self.accept[:k]])
        return arrive - np.append(arrive[1:], 0.0)

    def expected(self, k: int) -> float:
        """Expected tokens of a round, the bonus token included."""
        return float(np.sum(self.lengths(k) * np.arange(1, k + 2)))

    def hit_rate(self, k: int) -> float:
        """Chance that an outcome was prepared for."""
        return float(np.dot(self.lengths(k), [*self.inner[:k], self.leaf[k]]))

    def draw(self, rng: np.random.Generator, depth: int) -> tuple[int, bool]:
        """A random outcome of a speculation of `depth` tokens: (accepted tokens, whether it was prepared for)."""
        refused = np.flatnonzero(rng.random(depth) >= self.accept[:depth])
        n = int(refused[0]) if len(refused) else depth
        return n, bool(rng.random() < (self.leaf[depth] if n == depth else self.inner[n]))


def law(acceptance: float, exponent: float, fan_out: list[int]) -> Outcomes:
    """The Outcomes of chains of len(fan_out) - 1 tokens if the draft prepares fan_out[n] bonus tokens after n accepted.

    The target's token is not among the draft's m most probable with chance (1 - acceptance) m^-exponent, the power law
    of arXiv 2603.03251 with the acceptance at m = 1. After a rejection, the draft's first choice is known to be wrong,
    so F candidates miss with chance (F + 1)^-exponent; after the last token, with chance (1 - acceptance) F^-exponent.
    """
    inner = [1 - (f + 1.0) ** -exponent for f in fan_out]
    leaf = [1 - (1 - acceptance) * f**-exponent if f else 0.0 for f in map(float, fan_out)]
    return Outcomes((acceptance,) * (len(fan_out) - 1), tuple(inner), tuple(leaf))


def from_rates(accept: list[float], hit_rate: float, k: int) -> Outcomes:
    """The Outcomes for measured rates: acceptance by position, of which the last one holds from there on, and one hit
    rate for all outcomes."""
    accept = [*accept, *[accept[-1]] * (k - len(accept))][:k]
    return Outcomes(tuple(accept), (hit_rate,) * (k + 1), (hit_rate,) * (k + 1))


def exponent_of(acceptance: float, fan_out: list[int], hit_rate: float) -> float:
    """The exponent between 0.01 and 20 at which the law gives this hit rate, by bisection."""
    low, high = 0.01, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        if law(acceptance, middle, fan_out).hit_rate(len(fan_out) - 1) < hit_rate:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def allocate(acceptance: float, exponent: float, k: int, budget: int) -> list[int]:
    """Fan-out by accepted tokens, `budget` in all. Each candidate goes where the hit rate gains most; theorem 12 of
    arXiv 2603.03251 gives the same allocation in real numbers."""
    fan_out = [0] * (k + 1)
    ends = Outcomes((acceptance,) * k, (), ()).lengths(k)
    for _ in range(budget):

        def gain(n: int) -> float:
            now, then = (law(acceptance, exponent, [f] * (n + 1)) for f in (fan_out[n], fan_out[n] + 1))
            return ends[n] * (then.leaf[n] - now.leaf[n] if n == k else then.inner[n] - now.inner[n])

        fan_out[max(range(k + 1), key=gain)] += 1
    return fan_out
