"""Files of the cache folder, and the machine and the models that they belong to."""

import hashlib
from pathlib import Path

import torch


def cache_file(folder: Path, kind: str, *what) -> Path:
    """The file of a folder that keeps what was learnt of `what`, whatever can be told by its representation."""
    return folder / f"{kind}-{hashlib.sha256(repr(what).encode()).hexdigest()[:16]}.json"


def machine() -> tuple:
    """The CPU, the instruction set in use, and GPUs."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return next((line for line in lines if line.startswith("model name")), ""), torch.ops.ssd.isa(), *gpus


def pair_key(target, draft) -> tuple:
    """What tells two models apart from others, as far as their speed and their likeness go."""
    return str(target.config), target.dtype, str(draft.config), draft.vocab, draft.feature_layers
