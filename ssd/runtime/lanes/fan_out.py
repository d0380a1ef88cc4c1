"""Which bonus tokens a draft prepares for: the budget of branches is shared out among the nodes of a speculation.

It starts with theorem 12 of Kumar, Dao, May, arXiv 2603.03251, and follows what was measured.
"""

import json

from ..cache_files import write

RANKS = 16  # bonus tokens of one node at most
DEPTHS = 16


class FanOut:
    """The chance that the outcome is (node at depth d, its bonus candidate of rank r), learnt from every outcome.

    Two tables, for speculations that came from the cache and for others. accept[d]: the chance that the walk goes on
    below depth d once it came so far; hit[d][r]: the chance that the bonus token is the candidate of rank r where it
    ends there. each: so many candidates for every node, whatever was learnt.
    """

    def __init__(self, each: int | None = None, acceptance: float = 0.6, power: float = 1.0, rate: float = 0.03):
        self.each, self.rate = each, rate
        # p_hit(F) = 1 - (F + 1)^-power to begin with
        ranks = [(r + 1.0) ** -power - (r + 2.0) ** -power for r in range(RANKS)]
        self.tables = [
            {"accept": [acceptance] * DEPTHS, "hit": [list(ranks) for _ in range(DEPTHS + 1)]} for _ in range(2)
        ]

    @classmethod
    def read(cls, paths, each: int | None = None) -> "FanOut":
        """A FanOut with the tables of the first file that holds some; a file that cannot be read is passed over."""
        fan_out = cls(each)
        for path in paths:
            try:
                tables = json.loads(path.read_text())["tables"]
                shapes = [(len(t["accept"]), len(t["hit"]), {len(row) for row in t["hit"]}) for t in tables]
                values = [x for t in tables for row in (t["accept"], *t["hit"]) for x in row]
                if shapes == 2 * [(DEPTHS, DEPTHS + 1, {RANKS})] and all(0 <= x <= 1 for x in values):
                    fan_out.tables = tables
                    break
            except (OSError, ValueError, TypeError, KeyError):
                continue
        return fan_out

    def write(self, path) -> None:
        """Keep the tables for later runs."""
        write(path, json.dumps({"tables": self.tables}))

    def chances(self, hit: bool, depths: list[int], parents: list[int]) -> list[float]:
        """The chance that the walk ends there, for the root and each node of a tree."""
        accept = self.tables[hit]["accept"]
        children: dict[int, int] = {}
        for parent in parents:
            children[parent] = children.get(parent, 0) + 1
        arrive = [1.0]  # of the root and of each node: the chance that the walk comes there
        below = [0.0] * (len(parents) + 1)  # the same, summed over the children
        for node, parent in enumerate(parents):  # siblings share the chance that one of them is accepted
            siblings, first = children[parent] - 1, parents.index(parent) == node
            share = 1.0 if not siblings else 0.75 if first else 0.25 / siblings
            arrive.append(arrive[parent + 1] * accept[min(depths[node] - 1, DEPTHS - 1)] * share)
            below[parent + 1] += arrive[-1]
        return [max(a - b, 0.0) for a, b in zip(arrive, below, strict=True)]

    def allocate(self, hit: bool, depths: list[int], parents: list[int], budget: int) -> list[int]:
        """How many candidates the root and each node get, `budget` in all: the greatest chances first."""
        if self.each:
            return [self.each] * (len(parents) + 1)
        ends = self.chances(hit, depths, parents)
        table = self.tables[hit]["hit"]
        gains = [
            (end * chance, place)
            for place, (end, depth) in enumerate(zip(ends, [0, *depths], strict=True))
            for chance in table[min(depth, DEPTHS)]
        ]
        counts = [0] * len(ends)
        for _, place in sorted(gains, key=lambda gain: -gain[0])[:budget]:
            counts[place] += 1
        return counts

    def update(self, hit: bool, depth: int, leaf: bool, rank: int | None) -> None:
        """Learn from an outcome: the walk ended at that depth.

        leaf: at the end of a branch; rank: of the bonus token among the candidates of the node, None where it was not
        among them.
        """
        table, rate = self.tables[hit], self.rate
        for d in range(min(depth, DEPTHS)):
            table["accept"][d] += rate * (1 - table["accept"][d])
        if not leaf and depth < DEPTHS:
            table["accept"][depth] -= rate * table["accept"][depth]
        row = table["hit"][min(depth, DEPTHS)]
        for r in range(RANKS):
            row[r] += rate * ((r == rank) - row[r])
