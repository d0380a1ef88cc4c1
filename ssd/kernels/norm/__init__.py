"""RMSNorm, alone or after adding a residual (Zhang and Sennrich, arXiv 1910.07467)."""

import torch

from .. import library  # noqa: F401


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight.

    x: float32 [rows, n], contiguous; weight: float32 [n]. Returns float32 [rows, n].
    Raises ValueError or TypeError that names the argument.
    """
    return torch.ops.ssd.rms_norm(x, weight, eps)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """rms_norm(x + residual) and the sum itself, both float32 [rows, n]."""
    return torch.ops.ssd.add_rms_norm(x, residual, weight, eps)


@torch.library.register_fake("ssd::rms_norm")
def _(x, weight, eps):
    return x.new_empty(x.shape, dtype=weight.dtype)


@torch.library.register_fake("ssd::add_rms_norm")
def _(x, residual, weight, eps):
    return x.new_empty(x.shape, dtype=weight.dtype), torch.empty_like(x)
