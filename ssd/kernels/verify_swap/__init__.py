"""The end of a verification round on the device: match, lookup, swap, outcome and the next inputs in one kernel."""

from typing import NamedTuple

import torch

from .. import library  # noqa: F401


class Swapped(NamedTuple):
    """The results of a round, on the device; N is the number of nodes of a branch."""

    count: torch.Tensor  # int32 [B], tokens confirmed; 0: the request was left alone
    confirmed: torch.Tensor  # int64 [B, N + 1], these tokens, the bonus token last, then -1
    accepted: torch.Tensor  # int32 [B], depth of the accepted path
    branch: torch.Tensor  # int32 [B], branch adopted, -1: a miss
    taken: torch.Tensor  # int32 [B], nodes of the next tree
    kind: torch.Tensor  # int32 [B], ssd.kernels.Kind of the branch, -1: a miss
    sources: torch.Tensor  # int64 [B, N + 1], with targets: moves for kv_copy, -1: none
    targets: torch.Tensor  # int64 [B, N + 1]


def verify_swap(
    cache: torch.Tensor,
    sizes: list[int],
    slots: torch.Tensor,
    sampled: torch.Tensor,
    ids: torch.Tensor,
    parents: torch.Tensor,
    positions: torch.Tensor,
    kv_slots: torch.Tensor,
    mask: torch.Tensor,
    prefix_lens: torch.Tensor,
    page_table: torch.Tensor,
    page_size: int,
    capacity: torch.Tensor,
    features: torch.Tensor | None = None,
) -> Swapped:
    """Choose the outcomes of B verifications, look them up, flip, post, and replace the inputs by the next ones.

    cache: uint8, a speculation cache in device memory, and its sizes (ssd/runtime/lanes/speculation_cache.py); slots:
    int64 [B], distinct, -1: no request. sampled: int64 [B, N + 1], the target's token after each row (coupled
    verification; -1 where logits were no numbers). features [B, N + 1, hidden]: hidden states of the rows, kept beside
    the tokens that the rows drew.

    In place, row 0 the root and row i node i - 1: ids int64, parents int32 (rows; -1: root and padding), positions
    int32, kv_slots int64 (-1: padding), mask int64, all [B, N + 1]; prefix_lens int32 [B]. Padding sees nothing.
    page_table: int32 [B, P] of pages of page_size tokens; capacity: int32 [B], tokens that the pages of a request
    hold: the next tree is cut to fit, and a root that does not fit has kv_slot -1.

    The moves in the result bring the KV of the accepted path behind the prefix; run kv_copy with them before the next
    forward pass. A request whose log is full or whose bonus token is no token is left alone.
    CUDA only. Raises ValueError or TypeError that names the argument.
    """
    inputs = (ids, parents, positions, kv_slots, mask, prefix_lens)
    return Swapped(
        *torch.ops.ssd.verify_swap(cache, sizes, slots, sampled, *inputs, page_table, page_size, capacity, features)
    )


@torch.library.register_fake("ssd::verify_swap")
def _(cache, sizes, slots, sampled, ids, *rest):
    rows = [torch.empty_like(slots, dtype=torch.int32) for _ in range(5)]
    wide = [torch.empty_like(ids) for _ in range(3)]
    return rows[0], wide[0], *rows[1:], *wide[1:]
