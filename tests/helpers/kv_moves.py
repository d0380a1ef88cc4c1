"""Moves of keys and values that overlap, repeat and stay."""

import torch

SLOTS = 144


MOVES = {  # sources, targets
    "path down over itself": ([1, 2, 3], [0, 1, 2]),
    "path down": ([3, 4, 9, 11], [1, 2, 3, 4]),
    "up over itself: in order, slot 0 would spread": (list(range(11)), list(range(1, 12))),
    "swap": ([5, 9], [9, 5]),
    "cycle": ([7, 8, 9], [8, 9, 7]),
    "one source for all": ([4, 4, 4], [1, 2, 4]),
    "none": ([-1, 4, 3], [4, -1, 3]),
    "permutation": (list(range(130)), torch.randperm(130, generator=torch.Generator().manual_seed(0)).tolist()),
    "empty": ([], []),
}
