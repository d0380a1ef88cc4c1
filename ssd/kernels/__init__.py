"""The operators: each folder holds the reference, the Triton form and the public function; C++ and CUDA are in csrc."""

from importlib.util import find_spec

import torch

from .embedding import embedding
from .kv_copy import kv_copy
from .linear import linear, linear_swiglu, pack_linear
from .llama_forward import llama_forward
from .norm import add_rms_norm, rms_norm
from .rope_append import rope_append
from .sample import noise_words, sample
from .suffix_automaton import SuffixAutomaton
from .top_f import top_f
from .tree_attention import tree_attention
from .verify import Kind, Verified, probs, saguaro, verify_coupled, verify_rejection
from .verify_swap import Swapped, verify_swap

__all__ = [
    "Kind",
    "SuffixAutomaton",
    "Swapped",
    "Verified",
    "add_rms_norm",
    "embedding",
    "kv_copy",
    "linear",
    "linear_swiglu",
    "llama_forward",
    "noise_words",
    "pack_linear",
    "probs",
    "rms_norm",
    "rope_append",
    "saguaro",
    "sample",
    "top_f",
    "tree_attention",
    "verify_coupled",
    "verify_rejection",
    "verify_swap",
]

if torch.version.cuda and find_spec("triton"):
    from . import cuda

    cuda.register()
