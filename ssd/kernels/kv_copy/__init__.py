"""Moves cached tokens: an accepted path behind the prefix, or a branch of a draft to its place."""

import torch

from .. import library  # noqa: F401


def kv_copy(k_cache: torch.Tensor, v_cache: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> None:
    """Copy slot sources[i], as it was before the call, to slot targets[i], in every layer, in place.

    k_cache, v_cache: [layers, pages, page_size, kv heads, head_dim], contiguous, one dtype; sources, targets: int64
    [n] of physical slots, page * page_size + offset; a pair with a negative number is skipped. All sources are read
    before a target is written, so one pair's target may be another's source: chains, swaps and cycles are right.
    Raises ValueError or TypeError that names the argument, also for a target that is named twice.
    """
    torch.ops.ssd.kv_copy(k_cache, v_cache, sources, targets)


@torch.library.register_fake("ssd::kv_copy")
def _(k_cache, v_cache, sources, targets):
    return None
