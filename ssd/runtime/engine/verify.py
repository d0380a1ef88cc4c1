"""Verification of a pass: one function for each rule, with one signature.

plan, trees: the sequences of the pass and what was proposed for them. logits: float32 [rows, vocabulary] on the
target's device. verification: row offsets, tokens and parents for the sequences that sample. sampling: arguments of
`ssd.kernels.sample` behind the logits. placement: of the target. Each returns Verified in host memory.
"""

from collections.abc import Callable
from functools import lru_cache, partial

import torch

from ssd import kernels
from ssd.kernels import Kind, Verified


def verification(rule: str, sample: Callable) -> Callable[..., Verified]:
    """The function of a rule: "plain" (one sampled token, no tree), "coupled" or "rejection".

    sample: the operator of that name.
    """
    rules = {"plain": partial(sample_plain, sample), "coupled": verify_coupled, "rejection": verify_by_rejection}
    return rules[rule]


def sample_plain(sample, plan, trees, logits, verification, sampling, placement) -> Verified:
    *arguments, logprobs = sampling
    tokens, probs = placement.get(*sample(logits, *placement.put(*arguments), logprobs))
    return Verified(*nothing_accepted(len(tokens)), tokens[:, None], probs[:, None])


@lru_cache  # making them costs more than all else in this function
def nothing_accepted(requests: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The accepted nodes, and their number, of requests without trees."""
    return torch.empty(requests, 0, dtype=torch.int8), torch.zeros(requests, dtype=torch.int32)


def verify_coupled(plan, trees, logits, verification, sampling, placement) -> Verified:
    *arguments, logprobs = *verification, *sampling
    return Verified(*placement.get(*kernels.verify_coupled(logits, *placement.put(*arguments), logprobs)))


def verify_by_rejection(plan, trees, logits, verification, sampling, placement) -> Verified:
    """Trees carry their kind, what they were sampled from (q) and the target's id of each entry of q."""
    (logits,) = placement.get(logits)
    proposed = [tree for work, tree in zip(plan, trees, strict=True) if work.samples]
    kinds = [tree.kind if tree else Kind.DETERMINISTIC for tree in proposed]
    q = None
    if any(kind == Kind.SAMPLED for kind in kinds):
        q = torch.zeros_like(logits)
        for tree, first in zip(proposed, verification.row_offsets.tolist(), strict=False):
            for node, row in (tree.q if tree else {}).items():
                if node < len(tree):
                    columns = torch.arange(len(row)) if tree.ids is None else tree.ids
                    q[first + 1 + node].scatter_(0, columns, row)
    return kernels.verify_rejection(logits, *verification, torch.tensor(kinds, dtype=torch.int8), q, *sampling)
