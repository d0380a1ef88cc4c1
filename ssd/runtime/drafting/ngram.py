"""Proposals without a draft model: what followed the longest suffix of the text where the text had it before.

Prompt lookup: Saxena, 2023; with a suffix automaton: Hu et al., arXiv 2411.10666.
"""

from collections.abc import Iterator

import numpy as np
import torch

from ssd.kernels import Kind, SuffixAutomaton

from ..engine.tree import Tree


class Text:
    """The confirmed tokens of one sequence."""

    def __init__(self):
        self.automaton, self.size = SuffixAutomaton(), 0

    def follow(self, sequence, new: list[int], width: int, limit: int) -> tuple[int, list[list[int]]]:
        """SuffixAutomaton.follow for the sequence's tokens and `new` ones behind them."""
        tokens = sequence.tokens[self.size : sequence.num_tokens]
        if new:
            tokens = np.concatenate([tokens, np.array(new[max(self.size - sequence.num_tokens, 0) :], np.int64)])
        self.size += len(tokens)
        return self.automaton.follow(torch.from_numpy(tokens), width, max(limit, 0))


class NgramProposer:
    """Proposes trees out of a sequence's own text, which costs no pass of a model."""

    layers: tuple[int, ...] = ()  # features of the target that it reads
    steps = 0
    runner = None

    def __init__(self):
        self.texts: dict[object, Text] = {}

    def warm_up(self, width: int) -> Iterator[None]:
        return iter(())

    def propose(self, sequences, limits, thresholds, policy, width: int) -> list[Tree]:
        """For each sequence a tree of at most limits[i] levels, width branches and policy.nodes nodes."""
        return [self._tree(*each, policy, width) for each in zip(sequences, limits, thresholds, strict=True)]

    def _tree(self, sequence, limit: int, thresholds, policy, width: int) -> Tree:
        length, found = self._text(sequence).follow(sequence, [], width, limit)
        tree, keep = Tree(), thresholds[0]
        tree.kind = Kind.DETERMINISTIC
        for rank, tokens in enumerate(found):
            node, score = -1, 1.0
            for depth, token in enumerate(tokens):
                where = policy.calibration.suffix(length, rank, depth)
                score *= policy.calibration.chance(where)
                if score < keep or len(tree) == policy.nodes:
                    break
                node = tree.add(token, node, score, where)
        return tree

    def after(self, sequence, new: list[int], limit: int) -> Tree:
        """A chain of at most `limit` tokens behind a sequence and the tokens that it is about to get."""
        _, found = self._text(sequence).follow(sequence, new, 1, limit)
        tree = Tree(found[0] if found else ())
        tree.kind = Kind.DETERMINISTIC
        return tree

    def _text(self, sequence) -> Text:
        text = self.texts.get(sequence)
        if text is None:
            text = self.texts[sequence] = Text()
        return text

    def accept(self, sequences, trees, paths) -> None:
        """Nothing to do: the text is read again."""

    def pause(self) -> None:
        """Nothing to do: texts take little memory."""

    def release(self, sequence) -> None:
        self.texts.pop(sequence, None)
