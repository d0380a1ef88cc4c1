"""The target's hidden states, for drafts that read them."""

import torch


class Features:
    """Of each sequence, float32 [its capacity, width]; row j is the token at index j. width 0: none are kept."""

    def __init__(self, width: int):
        self.width = width
        self.rows: dict[object, torch.Tensor] = {}

    def of(self, sequence) -> torch.Tensor | None:
        if not self.width:
            return None
        if sequence not in self.rows:
            self.rows[sequence] = torch.empty(len(sequence.tokens), self.width)
        return self.rows[sequence]

    def keep(self, plan, paths, offsets: list[int], features: torch.Tensor) -> None:
        """Those of a pass of the target: of each sequence's rows and, of its tree, of the accepted path."""
        for (sequence, count), path, first in zip(plan, paths, offsets, strict=False):
            rows, begin = self.of(sequence), sequence.num_cached
            rows[begin : begin + count] = features[first : first + count]
            for k, node in enumerate(path or ()):
                rows[begin + count + k] = features[first + count + node]

    def release(self, sequence) -> None:
        self.rows.pop(sequence, None)
