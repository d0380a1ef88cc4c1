"""Files of the cache folder, and the machine and the models that they belong to."""

import hashlib
from pathlib import Path

import torch


def cache_file(folder: Path, kind: str, *what) -> Path:
    """The file of a folder in which something of that kind is kept about `what`, told apart by its representation."""
    return folder / f"{kind}-{hashlib.sha256(repr(what).encode()).hexdigest()[:16]}.json"


def machine() -> tuple:
    """The CPU's name, the instruction set in use, and the GPUs' names."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return next((line for line in lines if line.startswith("model name")), ""), torch.ops.ssd.isa(), *gpus


def pair_key(target, draft) -> tuple:
    """What tells a target and its draft from other pairs, as far as speed and likeness go."""
    return str(target.config), target.dtype, str(draft.config), draft.vocab, draft.feature_layers
