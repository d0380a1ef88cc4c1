"""Which bonus tokens a draft prepares for: the budget of branches shared out among the nodes of a speculation
(Kumar, Dao, May, arXiv 2603.03251, theorem 12; then by what was measured)."""

import json
from contextlib import suppress

RANKS = 16  # bonus tokens of one node at most
DEPTHS = 16


class FanOut:
    """Chance that the outcome is (node at depth d, its bonus candidate of rank r), learnt from every outcome.

    stop[d]: the walk ends at depth d, given that it came so far (all of it at the end of a branch); hit[d][r]: the
    bonus token is then the candidate of rank r. Two tables: of speculations that came from the cache, and of others.
    each: as many candidates for every node, whatever was learnt.
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
        """With the tables of the first file that holds some; a file that cannot be read counts for nothing."""
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
        """Keep the tables for later runs; without a place for them they are lost, and nothing else."""
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"tables": self.tables}))

    def chances(self, hit: bool, depths: list[int], parents: list[int]) -> list[float]:
        """For the root and each node of a tree: the chance that the walk ends there."""
        accept = self.tables[hit]["accept"]
        children: dict[int, int] = {}
        for parent in parents:
            children[parent] = children.get(parent, 0) + 1
        arrive, out = [1.0], []
        for node, parent in enumerate(parents):  # siblings share the chance of their parent's acceptance
            d = min(depths[node] - 1, DEPTHS - 1)
            first = parents.index(parent) == node
            share = 1.0 if children[parent] == 1 else 0.75 if first else 0.25 / (children[parent] - 1)
            arrive.append(arrive[parent + 1] * accept[d] * share)
        for node in range(-1, len(parents)):
            below = sum(arrive[i + 1] for i, parent in enumerate(parents) if parent == node)
            out.append(max(arrive[node + 1] - below, 0.0))
        return out

    def allocate(self, hit: bool, depths: list[int], parents: list[int], budget: int) -> list[int]:
        """Candidates of the root and of each node, `budget` in all: the greatest chances first."""
        if self.each:
            return [self.each] * (len(parents) + 1)
        ends = self.chances(hit, depths, parents)
        table = self.tables[hit]["hit"]
        gains = [
            (end * table[0 if node == 0 else min(depths[node - 1], DEPTHS)][rank], -node, -rank)
            for node, end in enumerate(ends)
            for rank in range(RANKS)
        ]
        out = [0] * len(ends)
        for _, node, _ in sorted(gains, reverse=True)[:budget]:
            out[-node] += 1
        return out

    def update(self, hit: bool, depth: int, leaf: bool, rank: int | None) -> None:
        """An outcome: the walk ended at that depth, at the end of a branch or not; rank of the bonus token among the
        candidates of the node, None where it was not among them."""
        table, rate = self.tables[hit], self.rate
        for d in range(min(depth, DEPTHS)):
            table["accept"][d] += rate * (1 - table["accept"][d])
        if not leaf and depth < DEPTHS:
            table["accept"][depth] -= rate * table["accept"][depth]
        row = table["hit"][min(depth, DEPTHS)]
        for r in range(RANKS):
            row[r] += rate * ((r == rank) - row[r])
