"""Operators of SSD: reference, Triton and public function in one folder each, C++ and CUDA in csrc."""

from .embedding import embedding
from .kv_copy import kv_copy
from .linear import linear, linear_swiglu, pack_linear
from .norm import add_rms_norm, rms_norm
from .rope_append import rope_append
from .sample import noise_words, sample
from .tree_attention import tree_attention

__all__ = [
    "add_rms_norm",
    "embedding",
    "kv_copy",
    "linear",
    "linear_swiglu",
    "noise_words",
    "pack_linear",
    "rms_norm",
    "rope_append",
    "sample",
    "tree_attention",
]
