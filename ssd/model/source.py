"""A model as it is stored, a folder or a GGUF file, and the form in which its weights are kept in memory."""

from functools import partial
from pathlib import Path

import torch

from .. import kernels
from ..shared_options import DTYPES
from .checkpoint import Checkpoint
from .config import LlamaConfig
from .hub import is_gguf
from .ring import Ring

FORMATS = {18: "q4_0", 20: "q4_1", 34: "q8_0"}  # formats of GGUF files by the bytes of a block


def checked_dtype(source: str | Path, dtype: str | None, device: torch.device) -> str:
    """The dtype to load: the given one, or where it is None q4 for a GGUF file mostly of four bits, else bf16.

    Raises ValueError on an unknown dtype, and for q4 on a device other than the CPU.
    """
    if dtype is None:
        if device.type != "cpu" or not is_gguf(source):
            return "bf16"
        from .gguf.file import GGUFFile  # the package gguf is slow to import
        from .gguf.weights import mostly_four_bits

        return "q4" if mostly_four_bits(GGUFFile(source)) else "bf16"
    if dtype not in DTYPES:
        raise ValueError(f"dtype: got {dtype!r}, wanted one of {', '.join(DTYPES)}")
    if dtype == "q4" and device.type != "cpu":
        raise ValueError(f"dtype: q4 runs on the CPU only; use bf16, int8 or fp32 on {device}")
    return dtype


def ring_to(device: torch.device) -> Ring | None:
    """What sends weights to a device; None for the CPU, where they are read in place."""
    return None if device.type == "cpu" else Ring(device)


def open_model(source: str | Path, dtype: str, device: torch.device) -> tuple[LlamaConfig, Checkpoint]:
    """Configuration, and weights for a device. With q4 the blocks of a GGUF file of four bits are kept, also of one in
    the folder.

    Raises ValueError as LlamaConfig.from_folder and Checkpoint do, for a GGUF file as GGUFFile and llama_config do.
    """
    if is_gguf(source):
        from .gguf.config import llama_config
        from .gguf.file import GGUFFile
        from .gguf.weights import GGUFCheckpoint

        file = GGUFFile(source)
        config = llama_config(file)
        keep = dtype == "q4" and config.head_dim == config.padded_head_dim
        return config, GGUFCheckpoint(file, config, keep, ring_to(device))
    config = LlamaConfig.from_folder(source)
    if dtype == "q4" and config.head_dim == config.padded_head_dim:  # blocks cannot be padded
        from .gguf.file import GGUFFile
        from .gguf.weights import GGUFCheckpoint, mostly_four_bits

        files = [file for path in sorted(Path(source).glob("*.gguf")) if mostly_four_bits(file := GGUFFile(path))]
        if len(files) == 1:
            return config, GGUFCheckpoint(files[0], config, True)
    return config, Checkpoint(source, ring=ring_to(device))


def packing(dtype: str):
    """The functions pack and pack_head for load_weights. q4 keeps blocks; other weights become Q4_1, the head Q8_0."""

    def pack(weight, outputs=None, format=dtype):
        return kernels.pack_linear(weight, format, outputs)

    def pack_q4(weight, outputs=None, *, floats):
        return pack(weight, outputs, FORMATS[weight.shape[2]] if weight.dtype == torch.uint8 else floats)

    return (partial(pack_q4, floats="q4_1"), partial(pack_q4, floats="q8_0")) if dtype == "q4" else (pack, pack)
