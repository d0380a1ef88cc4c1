"""The tokens that a draft proposes for the children of a node, and how they were chosen."""

import torch

from ssd import kernels
from ssd.kernels import Kind

RANKED = 4  # candidates that a confidence is measured among


def parameters(sequences, positions):
    """temperature, top_k, top_p, min_p, seeds and positions, one row for each sequence given."""
    params = [s.params for s in sequences]
    return (
        torch.tensor([p.temperature for p in params], dtype=torch.float32),
        torch.tensor([p.top_k for p in params], dtype=torch.int32),
        torch.tensor([p.top_p for p in params], dtype=torch.float32),
        torch.tensor([p.min_p for p in params], dtype=torch.float32),
        torch.tensor([s.seed for s in sequences]),
        torch.tensor(positions),
    )


class Coupled:
    """The best under the target's own noise (Daliri, Musco, Suresh, arXiv 2408.07978): any tree of them is exact."""

    prunes = True  # a token may be left out for what it is

    def kind(self, params) -> Kind:
        return Kind.COUPLED

    def best(self, logits, sequences, positions, width: int, ids):
        """(tokens [n][width], -1: none; confidence [n][width]; draft probabilities, None) for rows of the draft.

        positions: of the token guessed; ids: the target's id of each output of the draft, or None.
        """
        f = min(max(width, RANKED), logits.shape[1])
        tokens, scores = kernels.top_f(logits, *parameters(sequences, positions), f, target_ids=ids)
        return tokens.tolist(), torch.softmax(scores, 1).tolist(), None


class Sampled:
    """Samples without replacement from the draft's own distribution, for rejection sampling; at temperature 0 the
    best. saguaro: scale of its greatest probabilities before (Kumar, Dao, May, arXiv 2603.03251).

    The shape of a tree must not depend on what was drawn: no token is left out for what it is.
    """

    prunes = False

    def __init__(self, saguaro: float = 1.0):
        self.saguaro = saguaro

    def kind(self, params) -> Kind:
        return Kind.SAMPLED if params.temperature > 0 else Kind.DETERMINISTIC

    def best(self, logits, sequences, positions, width: int, ids):
        """As Coupled.best, with float32 [n, vocab] of the draft as the third."""
        values = parameters(sequences, positions)
        q = kernels.probs(logits, *values[:4])
        drawn = values[0] > 0
        if self.saguaro < 1:
            q = torch.where(drawn[:, None], kernels.saguaro(q, min(RANKED, q.shape[1]), self.saguaro), q)
        scores = torch.where(drawn[:, None], q.log(), logits)  # temperature 0: the greatest logits
        plain = (torch.ones_like(values[0]), torch.zeros_like(values[1]), torch.ones_like(values[2]))
        at = (plain[0] * drawn, *plain[1:], torch.zeros_like(values[3]), *values[4:])
        tokens, best = kernels.top_f(scores, *at, min(width, q.shape[1]), target_ids=ids, purpose=3)
        tokens = torch.where(best > -torch.inf, tokens, -1)
        return tokens.tolist(), q.topk(tokens.shape[1]).values.tolist(), q
