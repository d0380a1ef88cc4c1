"""Files of the cache folder, and the machine and the models that they belong to."""

import hashlib
import logging
from pathlib import Path

import torch

log = logging.getLogger(__name__)


def write(path: Path, text: str) -> None:
    """Keep a text for later runs. Where it cannot be written it is lost, and nothing else is; one line says so."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError as e:
        log.warning("%s cannot be written (%s): later runs measure and learn anew", path, e.strerror or e)


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
