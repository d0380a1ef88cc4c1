"""Verification of a pass: the coupled rule, or rejection sampling."""

import torch

from ssd import kernels
from ssd.kernels import Kind, Verified


def verify_coupled(logits, verification, sampling, placement) -> Verified:
    """The operator of that name where the logits are, its results in host memory."""
    *arguments, logprobs = *verification, *sampling
    return Verified(*placement.get(*kernels.verify_coupled(logits, *placement.put(*arguments), logprobs)))


def verify_by_rejection(plan, trees, logits, verification, sampling, ids) -> Verified:
    """verify_rejection of trees that carry their kind and their q. ids: the target's id of each entry of q."""
    places = [i for i, work in enumerate(plan) if work.samples]
    kinds = [trees[i].kind if trees[i] else Kind.DETERMINISTIC for i in places]
    q = None
    if any(kind == Kind.SAMPLED for kind in kinds):
        q = torch.zeros_like(logits)
        for i, first in zip(places, verification.row_offsets.tolist(), strict=False):
            for node, row in (trees[i].q if trees[i] else {}).items():
                if node < len(trees[i]):
                    q[first + 1 + node].scatter_(0, torch.arange(len(row)) if ids is None else ids, row)
    return kernels.verify_rejection(logits, *verification, torch.tensor(kinds, dtype=torch.int8), q, *sampling)
