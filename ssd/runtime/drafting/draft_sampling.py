"""The tokens that a draft proposes for the children of a node, and how they were chosen."""

from math import exp
from typing import NamedTuple

import numpy as np
import torch

from ssd import kernels
from ssd.kernels import Kind

from ..devices.placement import CPU, Placement, array

RANKED = 4  # candidates that a confidence is measured among


class Candidates(NamedTuple):
    """For n rows of a draft, lists of `width` each."""

    tokens: list[list[int]]  # to propose, best first; -1: none
    confidence: list[list[float]]
    bonus: list[list[int]]  # likeliest to be drawn where none of the children is accepted, best first
    q: torch.Tensor | None  # float32 [n, vocab of the draft], what sampled tokens were drawn from


def parameters(sequences, positions):
    """temperature, top_k, top_p, min_p, seeds and positions, one row for each sequence given."""
    params = [s.params for s in sequences]
    return (
        array([p.temperature for p in params], np.float32),
        array([p.top_k for p in params], np.int32),
        array([p.top_p for p in params], np.float32),
        array([p.min_p for p in params], np.float32),
        array([s.seed for s in sequences]),
        array(positions),
    )


def softmax(scores: list[list[float]]) -> list[list[float]]:
    """Of each row: of a few numbers, the fastest way."""
    rows = [[exp(x - top) for x in row] for row, top in zip(scores, map(max, scores), strict=True)]
    return [[x / total for x in row] for row, total in zip(rows, map(sum, rows), strict=True)]


class CoupledSampler:
    """The best under the target's own noise (Daliri, Musco, Suresh, arXiv 2408.07978): any tree of them is exact."""

    def kind(self, params) -> Kind:
        return Kind.COUPLED

    def candidates(self, logits, sequences, positions, width: int, ids, placement: Placement = CPU) -> Candidates:
        """positions: of the token guessed; ids: the target's id of each output of the draft, or None; place: of logits
        and ids."""
        f = min(max(width, RANKED), logits.shape[1])
        arguments = placement.put(*parameters(sequences, positions))
        tokens, scores = placement.get(*kernels.top_f(logits, *arguments, f, target_ids=ids))
        tokens = tokens.tolist()
        return Candidates(tokens, softmax(scores.tolist()), tokens, None)


class RejectionSampler:
    """Samples without replacement from the draft's own distribution, for rejection sampling; at temperature 0 the
    best. saguaro: scale of its greatest probabilities before (Kumar, Dao, May, arXiv 2603.03251), which are then what
    is likeliest left to the target.

    The shape of a tree must not depend on what was drawn: no token is left out for what it is.
    """

    def __init__(self, saguaro: float = 1.0):
        self.saguaro = saguaro

    def kind(self, params) -> Kind:
        return Kind.SAMPLED if params.temperature > 0 else Kind.DETERMINISTIC

    def candidates(self, logits, sequences, positions, width: int, ids, placement: Placement = CPU) -> Candidates:
        """As CoupledSampler.candidates."""
        (logits,) = placement.get(logits)
        ids = None if ids is None else ids.cpu()
        values = parameters(sequences, positions)
        plain = kernels.probs(logits, *values[:4])
        width, drawn, q = min(width, logits.shape[1]), values[0] > 0, plain
        if self.saguaro < 1:
            q = torch.where(drawn[:, None], kernels.saguaro(q, min(RANKED, q.shape[1]), self.saguaro), q)
        scores = torch.where(drawn[:, None], q.log(), logits)  # temperature 0: the greatest logits
        one, off = torch.ones_like(values[0]), torch.zeros_like(values[1])
        at = (one * drawn, off, one, 0 * one, *values[4:])
        tokens, best = kernels.top_f(scores, *at, width, target_ids=ids, purpose=3)
        tokens = torch.where(best > -torch.inf, tokens, -1)
        likely = plain.topk(width)
        bonus = likely.indices if ids is None else ids[likely.indices]
        bonus = torch.where(drawn[:, None], bonus, tokens)
        return Candidates(tokens.tolist(), likely.values.tolist(), bonus.tolist(), q)
