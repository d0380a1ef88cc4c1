"""The target's hidden states, for drafts that read them."""

from dataclasses import dataclass

import torch

from ssd.model import memory

from ..devices.placement import CPU


class Features:
    """The residual stream after `layers` beside each slot of the target's KV cache: who shares a page shares it too.

    rows: float32 [slots, len(layers) H], None before the first pass.
    """

    def __init__(self, layers: tuple[int, ...], slots: int):
        self.layers, self.slots = layers, slots
        self.rows: torch.Tensor | None = None

    def keep(self, round) -> None:
        """Store the features of a round: for each sequence its rows of known tokens and the accepted path."""
        if self.rows is None:
            self.rows = memory.empty((self.slots, round.features.shape[1]), torch.float32)
        for part in round:
            begin, nodes = part.sequence.num_cached, part.first_row + part.count
            picked = [*range(part.first_row, nodes), *(nodes + node for node in part.path or ())]
            slots = part.sequence.slots[begin : begin + len(picked)]
            self.rows.numpy()[slots] = CPU.pick(round.features, picked).numpy()

    def of(self, sequence, layers: tuple[int, ...]) -> "FeaturesOf":
        """The features of one sequence after some of the layers, by token."""
        return FeaturesOf(self, sequence, layers)


@dataclass(frozen=True)
class FeaturesOf:
    """The features of one sequence; a slice of it is float32 [tokens, len(layers) H]."""

    features: Features
    sequence: object
    layers: tuple[int, ...]

    def __getitem__(self, tokens: slice) -> torch.Tensor:
        rows = CPU.pick(self.features.rows, self.sequence.slots[tokens])
        return columns(rows, self.features.layers, self.layers)


def columns(features: torch.Tensor, layers: tuple[int, ...], wanted: tuple[int, ...]) -> torch.Tensor:
    """The columns of features after `layers` that belong to the wanted layers."""
    if wanted == layers:
        return features
    width = features.shape[1] // len(layers)
    return torch.cat([features[:, i * width : (i + 1) * width] for i in map(layers.index, wanted)], 1)
