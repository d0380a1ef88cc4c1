"""A speculation: tokens below a root."""

import numpy as np

from ssd.kernels import Kind


class Tree:
    """Nodes in topological order; node -1 is the root. In a verification the root is tree slot 0, node i slot i + 1.

    depth counts edges from the root. bits[i] has bit s set where node i sees slot s: the root, the nodes on its path
    and itself. score[i] estimates the chance that node i is accepted. origin: where it comes from: "hit" (the
    speculation cache), "fallback" (after a miss) or "draft" (drafted while the target waited). kind: how its tokens
    were chosen, ssd.kernels.verify.Kind. drafted: by a model, not by n-grams. ids: the target's id of each entry of q,
    int64 [vocab of the draft], None where they are the same.
    """

    origin, kind, drafted, ids = "draft", Kind.COUPLED, True, None

    def __init__(self, tokens=(), parents=None):
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.depth: list[int] = []
        self.bits: list[int] = []
        self.score: list[float] = []
        self.rank: list[tuple[int, int]] = []  # (bin, row) of the policy's Calibration
        self.q: dict[int, object] = {}  # by node: float32 [vocab of the draft] from which its children were sampled
        for i, token in enumerate(tokens):
            self.add(token, i - 1 if parents is None else parents[i])

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, token: int, parent: int, score: float = 1.0, rank: tuple[int, int] = (0, 0)) -> int:
        """Add a node. Returns its number."""
        node = len(self.tokens)
        self.tokens.append(token)
        self.parents.append(parent)
        self.depth.append(1 + (self.depth[parent] if parent >= 0 else 0))
        self.bits.append(1 << (node + 1) | (self.bits[parent] if parent >= 0 else 1))
        self.score.append(score)
        self.rank.append(rank)
        return node

    def nodes(self, node: int) -> list[int]:
        """The nodes from below the root down to a node, which is the last of them."""
        found = []
        while node >= 0:
            found.append(node)
            node = self.parents[node]
        return found[::-1]

    def path(self, node: int) -> list[int]:
        """The tokens from below the root down to a node."""
        return [self.tokens[n] for n in self.nodes(node)]

    def cut(self, count: int) -> None:
        """Keep the first so many nodes."""
        for values in (self.tokens, self.parents, self.depth, self.bits, self.score, self.rank):
            del values[count:]

    @property
    def is_chain(self) -> bool:
        return all(parent == i - 1 for i, parent in enumerate(self.parents))


def words(bits: list[int], count: int) -> np.ndarray:
    """Mask words int64 [len(bits), count] of rows of bits."""
    whole = [[b >> 64 * w & 0xFFFFFFFFFFFFFFFF for w in range(count)] for b in bits]
    return np.array(whole, np.uint64).reshape(len(bits), count).view(np.int64)
