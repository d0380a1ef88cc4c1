"""Token embedding."""

import torch

from .. import library  # noqa: F401


def embedding(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Rows of table [V, H] (float32 or bfloat16) for ids int64 [R], as float32 [R, H].

    Raises ValueError when an id is outside 0..V-1, TypeError for another dtype.
    """
    return torch.ops.ssd.embedding(ids, table)


@torch.library.register_fake("ssd::embedding")
def _(ids, table):
    return table.new_empty(ids.shape[0], table.shape[1], dtype=torch.float32)
