"""Coupled sampling: the Gumbel-max trick with noise that is a function of seed, position and token id
(Daliri, Musco, Suresh, arXiv 2408.07978; Philox: Salmon et al., SC 2011)."""

import torch

from .. import library  # noqa: F401


def sample(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    logprobs: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The argmax over survivors v of (logit_v / temperature - log E(seed, position, v)), E exponential with mean 1.

    This is a draw from the processed distribution: temperature, then top_k, top_p, min_p, renormalised. Ties in a
    filter or in the answer go to the lower id. At temperature 0 it is the argmax of the logits.

    logits: float32 [rows, vocab], rows contiguous (a slice of a padded vocabulary will do), -inf never drawn;
    temperature: float32 [rows]; top_k: int32 [rows], 0 = off; top_p: float32 [rows] in (0, 1], 1 = off;
    min_p: float32 [rows] in [0, 1], 0 = off; seeds: int64 [rows]; positions: int64 [rows], the index in the sequence
    of the token being drawn. Returns tokens int64 [rows] and their log-probabilities under log_softmax(logits),
    float32 [rows] ([0] without logprobs). Raises ValueError or TypeError that names the argument, and the row where
    logits have NaN, +inf or nothing but -inf.
    """
    return torch.ops.ssd.sample(logits, temperature, top_k, top_p, min_p, seeds, positions, logprobs)


def noise_words(seeds: torch.Tensor, positions: torch.Tensor, ids: int, purpose: int = 0) -> torch.Tensor:
    """The 32-bit words behind the noise of ids 0 to ids - 1: int64 [rows, ids], for seeds and positions int64 [rows].

    w = min((word + 0.5) * 2^-32, 1 - 2^-24) in float32, and E = -log1p(-w).
    """
    return torch.ops.ssd.noise_words(seeds, positions, ids, purpose)


@torch.library.register_fake("ssd::sample")
def _(logits, temperature, top_k, top_p, min_p, seeds, positions, logprobs=True):
    rows = logits.shape[0]
    return seeds.new_empty(rows), logits.new_empty(rows if logprobs else 0)


@torch.library.register_fake("ssd::noise_words")
def _(seeds, positions, ids, purpose=0):
    return seeds.new_empty(seeds.shape[0], ids)
