"""Proposals without a draft model: what followed the longest suffix of the text where it stood before
(prompt lookup; Saxena, 2023)."""

from ssd.kernels import Kind

from .tree import Tree

LONGEST, SHORTEST = 8, 2


class History:
    """Tokens of one sequence and where each of its n-grams ended, newest last."""

    def __init__(self):
        self.tokens: list[int] = []
        self.ends: list[dict[tuple, list[int]]] = [{} for _ in range(LONGEST + 1)]  # by n

    def extend(self, tokens) -> None:
        for token in tokens:
            self.tokens.append(token)
            end = len(self.tokens)
            for n in range(SHORTEST, min(LONGEST, end) + 1):
                self.ends[n].setdefault(tuple(self.tokens[end - n :]), []).append(end)

    def continuations(self, width: int) -> tuple[int, list[int]]:
        """(length of the longest suffix seen before, where it ended: the newest of each different next token)."""
        size = len(self.tokens)
        for n in range(min(LONGEST, size), SHORTEST - 1, -1):
            ends = self.ends[n].get(tuple(self.tokens[size - n :]), ())
            found, seen = [], set()
            for end in reversed(ends):
                if end < size and self.tokens[end] not in seen:
                    seen.add(self.tokens[end])
                    found.append(end)
                    if len(found) == width:
                        break
            if found:
                return n, found
        return 0, []


class NgramProposer:
    """Trees out of a sequence's own text; costs no pass of a model."""

    layers: tuple[int, ...] = ()  # features of the target that it reads
    steps = 0
    ids = runner = None

    def __init__(self):
        self.histories: dict[object, History] = {}

    def propose(self, sequences, limits, thresholds, policy, width: int) -> list[Tree]:
        """For each sequence a tree of at most limits[i] levels, width branches and policy.nodes nodes."""
        return [self._tree(*each, policy, width) for each in zip(sequences, limits, thresholds, strict=True)]

    def _tree(self, sequence, limit: int, thresholds, policy, width: int) -> Tree:
        history = self.histories.setdefault(sequence, History())
        history.extend(sequence.tokens[len(history.tokens) : sequence.num_tokens].tolist())
        length, ends = history.continuations(width)
        tree, keep = Tree(), thresholds[0]
        tree.kind = Kind.DETERMINISTIC
        for rank, end in enumerate(ends):
            node, score = -1, 1.0
            for at in range(end, min(end + limit, len(history.tokens))):
                depth = at - end
                where = (min(2 * (length - SHORTEST) + (depth > 0), 15), min(rank, 1) if depth == 0 else 0)
                score *= policy.calibration.chance(where)
                if score < keep or len(tree) == policy.nodes:
                    break
                node = tree.add(history.tokens[at], node, score, where)
        return tree

    def after(self, sequence, new: list[int], limit: int) -> Tree:
        """A chain of at most limit tokens behind a sequence and tokens that it is about to get."""
        history = self.histories.setdefault(sequence, History())
        tokens = sequence.tokens[: sequence.num_tokens].tolist() + new
        history.extend(tokens[len(history.tokens) :])
        _, ends = history.continuations(1)
        tree = Tree(history.tokens[ends[0] : ends[0] + max(limit, 0)] if ends else ())
        tree.kind = Kind.DETERMINISTIC
        return tree

    def accept(self, sequences, trees, paths) -> None:
        """Nothing to do: the text is read again."""

    def release(self, sequence) -> None:
        self.histories.pop(sequence, None)
