"""Moves cached tokens: an accepted path to its place behind the prefix, a winning branch of a draft to its own."""

import torch

from .. import library  # noqa: F401


def kv_copy(k_cache: torch.Tensor, v_cache: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> None:
    """For i in order: slot targets[i] becomes what slot sources[i] holds at that time, in every layer, in place.

    k_cache, v_cache: [layers, pages, page_size, kv heads, head_dim], contiguous, one dtype; sources, targets: int64
    [n] of physical slots, page * page_size + offset; a pair with a negative number is skipped. An ascending path that
    moves down (targets[i] <= sources[i]) is never overwritten before it is read.
    Raises ValueError or TypeError that names the argument.
    """
    torch.ops.ssd.kv_copy(k_cache, v_cache, sources, targets)


@torch.library.register_fake("ssd::kv_copy")
def _(k_cache, v_cache, sources, targets):
    return None
