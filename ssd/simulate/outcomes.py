"""Outcomes of a verification: how far the walk goes, and whether its end was prepared for."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Outcomes:
    """accept: chance by position that a token is accepted after those before it; inner: by depth, that the bonus token
    of a walk which a rejection ended there was prepared for; leaf: the same where everything was accepted, by length
    of the speculation."""

    accept: tuple[float, ...]
    inner: tuple[float, ...]
    leaf: tuple[float, ...]

    def lengths(self, k: int) -> np.ndarray:
        """Chance of 0 to k accepted tokens, float64 [k + 1]."""
        arrive = np.cumprod([1.0, *self.accept[:k]])
        return arrive - np.append(arrive[1:], 0.0)

    def expected(self, k: int) -> float:
        """Tokens of a round, the bonus token included."""
        return float(np.sum(self.lengths(k) * np.arange(1, k + 2)))

    def hit_rate(self, k: int) -> float:
        """Share of the outcomes that were prepared for."""
        return float(np.dot(self.lengths(k), [*self.inner[:k], self.leaf[k]]))

    def draw(self, rng: np.random.Generator, depth: int) -> tuple[int, bool]:
        """(accepted tokens, whether the outcome was prepared for) of a speculation of that length."""
        refused = np.flatnonzero(rng.random(depth) >= self.accept[:depth])
        n = int(refused[0]) if len(refused) else depth
        return n, bool(rng.random() < (self.leaf[depth] if n == depth else self.inner[n]))


def law(acceptance: float, exponent: float, fan_out: list[int]) -> Outcomes:
    """Outcomes of chains of len(fan_out) - 1 tokens when the draft prepares fan_out[n] bonus tokens after n accepted.

    The target's token is not among the draft's m likeliest with chance (1 - acceptance) m^-exponent (the power law of
    arXiv 2603.03251, with the acceptance at m = 1). After a rejection the first is known to be wrong: F candidates
    miss with chance (F + 1)^-exponent; after the last token with (1 - acceptance) F^-exponent.
    """
    inner = [1 - (f + 1.0) ** -exponent for f in fan_out]
    leaf = [1 - (1 - acceptance) * f**-exponent if f else 0.0 for f in map(float, fan_out)]
    return Outcomes((acceptance,) * (len(fan_out) - 1), tuple(inner), tuple(leaf))


def from_rates(accept: list[float], hit_rate: float, k: int) -> Outcomes:
    """From measured rates: acceptance by position, the last one going on, and one hit rate for all outcomes."""
    accept = [*accept, *[accept[-1]] * (k - len(accept))][:k]
    return Outcomes(tuple(accept), (hit_rate,) * (k + 1), (hit_rate,) * (k + 1))


def exponent_of(acceptance: float, fan_out: list[int], hit_rate: float) -> float:
    """The exponent at which the law gives that hit rate, by bisection; between 0.01 and 20."""
    low, high = 0.01, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        if law(acceptance, middle, fan_out).hit_rate(len(fan_out) - 1) < hit_rate:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def allocate(acceptance: float, exponent: float, k: int, budget: int) -> list[int]:
    """Fan-out by accepted tokens, `budget` in all: the greatest gains in hit rate first, which theorem 12 of
    arXiv 2603.03251 gives in real numbers."""
    fan_out = [0] * (k + 1)
    ends = Outcomes((acceptance,) * k, (), ()).lengths(k)
    for _ in range(budget):

        def gain(n: int) -> float:
            now, then = (law(acceptance, exponent, [f] * (n + 1)) for f in (fan_out[n], fan_out[n] + 1))
            return ends[n] * (then.leaf[n] - now.leaf[n] if n == k else then.inner[n] - now.inner[n])

        fan_out[max(range(k + 1), key=gain)] += 1
    return fan_out
