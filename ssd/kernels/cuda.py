"""Registers the Triton forms as CUDA implementations of torch.ops.ssd.*, where no compiled form is registered."""

import functools

import torch

from . import compiling
from .embedding.triton import embedding
from .kv_copy.triton import kv_copy
from .linear.triton import linear, linear_swiglu, pack_linear
from .llama_forward.triton import llama_forward
from .norm.triton import add_rms_norm, rms_norm
from .rope_append.triton import rope_append
from .sample.triton import noise_words, sample
from .top_f.triton import top_f
from .tree_attention.triton import tree_attention
from .verify.triton import verify_coupled

FORMS = (
    add_rms_norm,
    embedding,
    kv_copy,
    linear,
    linear_swiglu,
    llama_forward,
    noise_words,
    pack_linear,
    rms_norm,
    rope_append,
    sample,
    top_f,
    tree_attention,
    verify_coupled,
)


def on_its_device(form):
    """The form, run on the device of its tensors. Raises ValueError when they lie on several devices."""

    @functools.wraps(form)
    def call(*args, **kwargs):
        tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)]
        devices = {t.device for t in tensors}
        if len(devices) != 1:
            raise ValueError(f"{form.__name__}: got tensors on {sorted(map(str, devices))}, wanted one device")
        with torch.cuda.device(tensors[0].device):
            try:
                return form(*args, **kwargs)
            except BaseException:
                compiling.ends()
                raise

    return call


def register() -> None:
    """Register all forms. ssd.kernels calls this once, when torch has CUDA and triton is installed."""
    compiling.watch()
    for form in FORMS:
        name = f"ssd::{form.__name__}"
        if not torch._C._dispatch_has_kernel_for_dispatch_key(name, "CUDA"):
            torch.library.impl(name, "cuda", on_its_device(form))
