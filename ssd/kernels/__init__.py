"""Operators of SSD: reference, Triton and public function in one folder each, C++ and CUDA in csrc."""

from .norm import add_rms_norm, rms_norm

__all__ = ["add_rms_norm", "rms_norm"]
