"""Operators of SSD: reference, Triton and public function in one folder each, C++ and CUDA in csrc."""

from .norm import add_rms_norm, rms_norm
from .sample import noise_words, sample

__all__ = ["add_rms_norm", "noise_words", "rms_norm", "sample"]
