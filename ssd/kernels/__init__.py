"""Operators of SSD: reference, Triton and public function in one folder each, C++ and CUDA in csrc."""

from .norm import add_rms_norm, rms_norm
from .sample import noise_words, sample
from .top_f import top_f
from .verify import Kind, Verified, probs, saguaro, verify_coupled, verify_rejection

__all__ = [
    "Kind",
    "Verified",
    "add_rms_norm",
    "noise_words",
    "probs",
    "rms_norm",
    "saguaro",
    "sample",
    "top_f",
    "verify_coupled",
    "verify_rejection",
]
