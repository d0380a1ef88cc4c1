"""Verification of speculations: finds the proposed tokens that the target accepts, and the bonus token that it adds.

Coupled: Daliri, Musco, Suresh, arXiv 2408.07978. Rejection: Leviathan et al., arXiv 2211.17192 (chains); Jeon et al.,
arXiv 2402.14160 (trees sampled without replacement); Kumar, Dao, May, arXiv 2603.03251 (Saguaro sampling).
"""

from enum import IntEnum
from typing import NamedTuple

import torch

from .. import library  # noqa: F401


class Kind(IntEnum):
    """The way a proposal was made, which the verification must know."""

    COUPLED = 0  # top_f with purpose 0: the target's own noise
    SAMPLED = 1  # top_f with purpose 3: siblings without replacement
    DETERMINISTIC = 2  # anything else that does not look at the target's noise (n-gram, greedy, stale)


class Verified(NamedTuple):
    path: torch.Tensor  # int8 [B, N]: accepted nodes from the root down, then -1
    accepted: torch.Tensor  # int32 [B]: how many; the deepest is path[b, accepted[b] - 1], or the root
    emitted: torch.Tensor  # int64 [B, N + 1]: their tokens, then the bonus token, then -1
    logprobs: torch.Tensor  # float32 [B, N + 1] under log_softmax(logits), then -inf; [0, N + 1] unless asked for


def verify_coupled(
    logits: torch.Tensor,
    row_offsets: torch.Tensor,
    tokens: torch.Tensor,
    parents: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    logprobs: bool = False,
) -> Verified:
    """Walk down while a child carries the token that `sample` draws; the last token drawn is the bonus token.

    The output is that of plain decoding whatever the tree. Only rows on the path are sampled.
    logits: float32 [R, V]: for each request the root's row, then one a node; row_offsets: int32 [B + 1];
    tokens: int32 [B, N]; parents: int8 [B, N], -1 = the root, else an earlier node. Request b has
    row_offsets[b + 1] - row_offsets[b] - 1 <= N <= 64 nodes. temperature to seeds: as in `sample`, [B];
    positions: int64 [B], the index of the token drawn at the root. Of children with one token the first is taken.
    Raises ValueError or TypeError that names the argument and the request or row.
    """
    return Verified(
        *torch.ops.ssd.verify_coupled(
            logits, row_offsets, tokens, parents, temperature, top_k, top_p, min_p, seeds, positions, logprobs
        )
    )


def verify_rejection(
    logits: torch.Tensor,
    row_offsets: torch.Tensor,
    tokens: torch.Tensor,
    parents: torch.Tensor,
    kinds: torch.Tensor,
    q: torch.Tensor | None,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    logprobs: bool = False,
) -> Verified:
    """Recursive rejection sampling, exact in distribution for what the kind of proposal promises.

    At a node, p being the processed target distribution: its children x in order are accepted if u < p(x) / q(x),
    else p becomes (p - q)+ normalised, and q loses x (a sampled proposal); or if u < p(x), else p loses x (a
    deterministic one). The token that ends the walk is drawn from what p has become.
    Arguments and results as in `verify_coupled`, and kinds: int8 [B] of `Kind` (a coupled proposal is refused); q:
    float32 [R, V], in the row of a node the distribution that its children were sampled from (other rows are not
    read), None without sampled proposals.
    """
    return Verified(
        *torch.ops.ssd.verify_rejection(
            logits, row_offsets, tokens, parents, kinds, q, temperature, top_k, top_p, min_p, seeds, positions, logprobs
        )
    )


def probs(
    logits: torch.Tensor, temperature: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor
) -> torch.Tensor:
    """The processed distribution that `sample` draws from, float32 [rows, vocab]; one-hot at temperature 0."""
    return torch.ops.ssd.probs(logits, temperature, top_k, top_p, min_p)


def saguaro(q: torch.Tensor, f: int, c: float) -> torch.Tensor:
    """Scale the f greatest probabilities of each row by c and renormalise: what the draft then samples from.

    Fewer drafts of the likeliest tokens leave them in the residual, where the bonus token is easier to predict.
    q: float32 [rows, vocab]. c in [0, 1]; rows with nothing beside the f greatest stay as they are at c = 0.
    Raises ValueError.
    """
    if not 0 <= c <= 1:
        raise ValueError(f"c: got {c}, wanted a number in [0, 1]")
    if not 0 < f <= q.shape[1]:
        raise ValueError(f"f: got {f}, wanted 1 to {q.shape[1]}")
    top = torch.zeros_like(q).scatter_(1, q.topk(f).indices, 1).bool()
    scaled = torch.where(top, q * c, q)
    total = scaled.sum(1, keepdim=True)
    return torch.where(total > 0, scaled / total, q)


def _fake(logits, tokens, parents, logprobs):
    batch, nodes = tokens.shape
    return (
        torch.empty_like(parents),
        tokens.new_empty(batch),
        tokens.new_empty(batch, nodes + 1, dtype=torch.int64),
        logits.new_empty(batch if logprobs else 0, nodes + 1),
    )


@torch.library.register_fake("ssd::verify_coupled")
def _(logits, row_offsets, tokens, parents, temperature, top_k, top_p, min_p, seeds, positions, logprobs=False):
    return _fake(logits, tokens, parents, logprobs)


@torch.library.register_fake("ssd::verify_rejection")
def _(
    logits, row_offsets, tokens, parents, kinds, q, temperature, top_k, top_p, min_p, seeds, positions, logprobs=False
):
    return _fake(logits, tokens, parents, logprobs)


@torch.library.register_fake("ssd::probs")
def _(logits, temperature, top_k, top_p, min_p):
    return logits.new_empty(logits.shape)
