"""The rows of one forward pass."""

from dataclasses import dataclass

import torch


@dataclass
class Batch:
    """R query rows of B requests; all integer tensors on the model's device."""

    ids: torch.Tensor  # int64 [R]
    positions: torch.Tensor  # int32 [R]
    slots: torch.Tensor  # int64 [R]
    row_offsets: torch.Tensor  # int32 [B + 1]
    prefix_lens: torch.Tensor  # int32 [B]
    page_table: torch.Tensor  # int32 [B, P]
    logit_rows: torch.Tensor  # int64 [n]
    mask: torch.Tensor | None = None  # int64 [R, W]
