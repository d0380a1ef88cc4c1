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

    @classmethod
    def chain(cls, ids, prefix: int = 0, page_size: int = 16, first_page: int = 0) -> "Batch":
        """One request of len(ids) rows behind `prefix` tokens, in pages first_page, first_page + 1, ...; logits of
        every row."""
        rows, total = len(ids), prefix + len(ids)
        pages = torch.arange(first_page, first_page - (-total // page_size), dtype=torch.int32)
        index = torch.arange(prefix, total)
        return cls(
            ids=torch.as_tensor(ids, dtype=torch.int64),
            positions=index.int(),
            slots=pages[index // page_size].long() * page_size + index % page_size,
            row_offsets=torch.tensor([0, rows], dtype=torch.int32),
            prefix_lens=torch.tensor([prefix], dtype=torch.int32),
            page_table=pages[None],
            logit_rows=torch.arange(rows),
        )
