"""Logits and filters for tests of samplers."""

import torch

FILTERS = [(0, 1, 0), (5, 1, 0), (0, 0.87, 0), (0, 0.999, 0), (50, 0.8, 0.02), (0, 1, 0.05), (0, 1e-6, 0), (1, 1, 0)]


def logits_of(rows, vocab, generator=None):
    """Random logits with many ties."""
    x = torch.randn(rows, vocab, generator=generator or torch.Generator().manual_seed(vocab)) * 3
    x[:, ::3] = x[:, ::3].round()
    return x
