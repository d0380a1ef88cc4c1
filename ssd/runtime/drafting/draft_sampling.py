"""How a draft chooses the tokens that it proposes."""

from math import exp
from typing import NamedTuple

import numpy as np
import torch

from ssd import kernels
from ssd.kernels import Kind

from ..devices.placement import CPU, Placement, array

RANKED = 4  # candidates among which confidence is measured


class Candidates(NamedTuple):
    """What n rows of a draft propose, a list for each row."""

    tokens: list[list[int]]  # to propose as children, best first; -1: none
    confidence: list[list[float]]  # in each of them
    bonus: list[list[int]]  # likely to be drawn where none of the children is accepted, best first
    q: torch.Tensor | None  # float32 [n, vocab of the draft] from which tokens were sampled; None unless they were


def parameters(sequences, positions):
    """temperature, top_k, top_p, min_p, seeds and positions as tensors [n], one entry for each sequence given."""
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
    """Softmax of each row; plain Python beats numpy at this size."""
    rows = [[exp(x - top) for x in row] for row, top in zip(scores, map(max, scores), strict=True)]
    return [[x / total for x in row] for row, total in zip(rows, map(sum, rows), strict=True)]


class CoupledSampler:
    """Takes the best tokens under the target's own noise (Daliri, Musco, Suresh, arXiv 2408.07978). Any tree of them is
    exact."""

    def kind(self, params) -> Kind:
        return Kind.COUPLED

    def candidates(self, logits, sequences, positions, width: int, ids, placement: Placement = CPU) -> Candidates:
        """Candidates of each row of logits, `width` at least.

        positions: of the tokens that are guessed; ids: the target's id of each output of the draft, None where they are
        the same; placement: where logits and ids are.
        """
        f = min(max(width, RANKED), logits.shape[1])
        arguments = placement.put(*parameters(sequences, positions))
        tokens, scores = placement.get(*kernels.top_f(logits, *arguments, f, target_ids=ids))
        tokens = tokens.tolist()
        return Candidates(tokens, softmax(scores.tolist()), tokens, None)


class RejectionSampler:
    """Samples without replacement from the draft's own distribution, for rejection sampling; takes the best tokens at
    temperature 0.

    saguaro: scales the draft's greatest probabilities before (Kumar, Dao, May, arXiv 2603.03251), so that they are what
    is most likely left to the target. The shape of a tree must not depend on what was drawn: no token is left out for
    what it is.
    """

    def __init__(self, saguaro: float = 1.0):
        self.saguaro = saguaro

    def kind(self, params) -> Kind:
        return Kind.SAMPLED if params.temperature > 0 else Kind.DETERMINISTIC

    def candidates(self, logits, sequences, positions, width: int, ids, placement: Placement = CPU) -> Candidates:
        """Candidates of each row of logits; arguments as for CoupledSampler.candidates."""
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
