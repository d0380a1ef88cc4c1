"""Expected speeds in closed form, beside which the simulation stands (Kumar, Dao, May, arXiv 2603.03251)."""

from .outcomes import Outcomes


def ar(times, batch: int = 1) -> float:
    """Tokens a second of plain decoding, all sequences together."""
    return batch / times.verify(batch, batch)


def sd(times, outcomes: Outcomes, k: int, batch: int = 1) -> float:
    """The same when k tokens are drafted and then verified."""
    return batch * outcomes.expected(k) / (k * times.draft(batch, batch) + times.verify(batch, batch * (k + 1)))


def ssd(times, outcomes: Outcomes, k: int, branches: int, batch: int = 1, stalls: bool = False) -> float:
    """Theorem 7, with p^b for a batch: where one outcome was not prepared for, all are drafted again.

    E / [p max(1, T_p) + (1 - p) (1 + T_b)] in units of a verification: T_p, a build, is a pass over what is new and k
    passes over the branches; T_b, the retry, is k passes. Both kinds of round have the same expected length here.
    stalls: a build is never broken off, so that a retry waits for its end too.
    """
    verify = times.verify(batch, batch * (k + 1))
    build = max(verify, (k + 1) * times.draft(batch, batch * branches))
    retry = (build if stalls else verify) + k * times.draft(batch, batch)
    p = outcomes.hit_rate(k) ** batch
    return batch * outcomes.expected(k) / (p * build + (1 - p) * retry)


def ssd_going_on(times, outcomes: Outcomes, k: int, branches: int, batch: int = 1) -> float:
    """The same where nobody waits for a retry: a sequence that missed verifies its root alone in the next round (the
    fallback without cost of theorem 7, T_b = 0 and E_miss = 1)."""
    p, alone = outcomes.hit_rate(k), outcomes.hit_rate(0)
    share = alone / (1 - p + alone)  # of the rounds of a sequence that verify a speculation
    verify = times.verify(batch, round(batch * (share * k + 1)))
    hit = 1 - (1 - share * p - (1 - share) * alone) ** batch  # some sequence waits for its branch
    seconds = hit * max(verify, (k + 1) * times.draft(batch, batch * branches)) + (1 - hit) * verify
    return batch * (share * outcomes.expected(k) + 1 - share) / seconds
