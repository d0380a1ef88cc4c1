"""The F best tokens of the coupled score: what a draft proposes, and the bonus tokens that it predicts."""

import torch

from .. import library  # noqa: F401


def top_f(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    f: int,
    exclude: torch.Tensor | None = None,
    target_ids: torch.Tensor | None = None,
    purpose: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The f tokens with the greatest (logit - max) / temperature - log E(seed, position, id), best first.

    Survivors of the filters come first, then the others; at temperature 0 the greatest logits, lowest id first.
    Rows as in `sample`: `positions` holds the index of the token that is being guessed. exclude: int64 [rows, any] of
    ids that do not count (the children already taken), -1 for none. target_ids: int64 [vocab], the target's id of
    every token of a trimmed draft vocabulary; ids, exclude and the noise are then the target's. purpose 0 is the noise
    of the target itself; with purpose 3 the result is a sample of f tokens without replacement, in order, for
    `verify_rejection`. Returns ids int64 [rows, f], -1 where tokens run out, and scores float32 [rows, f].
    Raises ValueError or TypeError that names the argument and the row.
    """
    return torch.ops.ssd.top_f(
        logits, temperature, top_k, top_p, min_p, seeds, positions, f, exclude, target_ids, purpose
    )


@torch.library.register_fake("ssd::top_f")
def _(logits, temperature, top_k, top_p, min_p, seeds, positions, f, exclude=None, target_ids=None, purpose=0):
    rows = logits.shape[0]
    return seeds.new_empty(rows, f), logits.new_empty(rows, f)
