"""How much a draft lane prepares in a round: as much as is done when the verification ends."""

import itertools
import operator

LEAST = 3.0  # outcomes that are prepared for, however short the time
FIRST = 4  # tokens of a branch to begin with
SHORTEST = 2  # tokens of a branch at least
USEFUL = 0.1  # chance of acceptance from which one more token is worth a row of the target


class BranchBudget:
    """How many outcomes a draft lane prepares for, and how long branches are.

    budget: outcomes at most. depth: tokens of a branch; where it adapts, at most so many.
    """

    def __init__(self, budget: int, depth: int, adapts: bool):
        self.budget, self.most, self.adapts = budget, depth, adapts
        self.share = float(budget)  # outcomes that can be prepared in time
        self.reach = float(min(depth, FIRST) if adapts else depth)  # tokens of a branch

    @property
    def outcomes(self) -> int:
        return int(self.share)

    @property
    def depth(self) -> int:
        return int(self.reach)

    def tick(self, in_time: bool, accept: list[float]) -> None:
        """Adapt after a round whose branches were ready in time, or were not.

        First the number of outcomes moves. Once it is at its end, branches get longer or shorter, as far as the text
        makes them useful. accept: by depth, the chance that a token is accepted after those before it.
        """
        if in_time and self.share < self.budget:
            self.share = min(self.share + 0.5, self.budget)
        elif not in_time and self.share > LEAST:
            self.share = max(0.8 * self.share, LEAST)
        elif self.adapts:
            chances = itertools.accumulate(accept[: self.most], operator.mul)
            useful = max(SHORTEST, sum(chance > USEFUL for chance in chances))
            step = 0.125 if in_time else -0.25
            self.reach = min(max(self.reach + step, SHORTEST), useful, self.most)
