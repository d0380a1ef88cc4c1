"""Expected speeds in closed form, with which the simulation is compared (Kumar, Dao, May, arXiv 2603.03251)."""

from .outcomes import Outcomes


def ar(times, batch: int = 1) -> float:
    """Tokens a second of plain decoding, all sequences together."""
    return batch / times.verify(batch, batch)


def sd(times, outcomes: Outcomes, k: int, batch: int = 1) -> float:
    """Tokens a second of synchronous speculation, where k tokens are drafted and then verified."""
    return batch * outcomes.expected(k) / (k * times.draft(batch, batch) + times.verify(batch, batch * (k + 1)))


def theorem_7(p: float, hit: float, miss: float, draft: float, fallback: float) -> float:
    """Tokens a verification, [p E_hit + (1 - p) E_miss] / [p max(1, T_p) + (1 - p) (1 + T_b)], T in verifications."""
    return (p * hit + (1 - p) * miss) / (p * max(1.0, draft) + (1 - p) * (1 + fallback))


def ssd(times, outcomes: Outcomes, k: int, branches: int, batch: int = 1, stalls: bool = False) -> float:
    """Tokens a second of SSD by theorem 7, with p^b for a batch: one miss makes the whole batch draft again.

    A build is one pass over the new tokens and k passes over the branches; the fallback is k passes. Rounds after both
    have the same expected length. stalls: a build is never abandoned, so the fallback also waits for its end.
    """
    verify = times.verify(batch, batch * (k + 1))
    expected = outcomes.expected(k)
    build = (k + 1) * times.draft(batch, batch * branches) / verify
    fallback = k * times.draft(batch, batch) / verify + (max(build, 1.0) - 1 if stalls else 0)
    return batch * theorem_7(outcomes.hit_rate(k) ** batch, expected, expected, build, fallback) / verify


def ssd_going_on(times, outcomes: Outcomes, k: int, branches: int, batch: int = 1) -> float:
    """Tokens a second of SSD without retries: a sequence that missed verifies its root alone in the next round. This is
    theorem 7 with a free fallback, T_b = 0 and E_miss = 1."""
    p = outcomes.hit_rate(k)
    alone = outcomes.hit_rate(0)
    share = alone / (1 - p + alone)  # share of a sequence's rounds that verify a speculation
    verify = times.verify(batch, round(batch * (share * k + 1)))
    hit = 1 - (1 - share * p - (1 - share) * alone) ** batch  # chance that some sequence waits for its branch
    seconds = hit * max(verify, (k + 1) * times.draft(batch, batch * branches)) + (1 - hit) * verify
    return batch * (share * outcomes.expected(k) + 1 - share) / seconds
