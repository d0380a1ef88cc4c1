"""How much a draft lane prepares in a round: as much as is done when the verification ends."""

import itertools
import operator

LEAST = 3.0  # outcomes prepared for, however short the time
FIRST, SHORTEST = 4, 2  # tokens of a branch to begin with, and at least
USEFUL = 0.1  # chance of being accepted that makes one more token worth a row of the target


class BranchBudget:
    """budget: outcomes at most. depth: tokens of a branch, or where it adapts, at most so many."""

    def __init__(self, budget: int, depth: int, adapts: bool):
        self.budget, self.most, self.adapts = budget, depth, adapts
        self.share = float(budget)  # of the budget, that can be prepared in time
        self.reach = float(min(depth, FIRST) if adapts else depth)  # of the depth

    @property
    def outcomes(self) -> int:
        return int(self.share)

    @property
    def depth(self) -> int:
        return int(self.reach)

    def tick(self, in_time: bool, accept: list[float]) -> None:
        """After a round whose branches stood in time, or did not: more or fewer outcomes; and once all are prepared
        for, or hardly any, longer or shorter branches, as far as the text makes them useful. accept: by depth, chance
        that a token is accepted after those before it."""
        if in_time and self.share < self.budget:
            self.share = min(self.share + 0.5, self.budget)
        elif not in_time and self.share > LEAST:
            self.share = max(0.8 * self.share, LEAST)
        elif self.adapts:
            chances = itertools.accumulate(accept[: self.most], operator.mul)
            useful = max(SHORTEST, sum(chance > USEFUL for chance in chances))
            step = 0.125 if in_time else -0.25
            self.reach = min(max(self.reach + step, SHORTEST), useful, self.most)
