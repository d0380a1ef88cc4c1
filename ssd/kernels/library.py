"""Loads the compiled operators, torch.ops.ssd.*."""

from pathlib import Path

import torch


def load() -> None:
    """Load ssd/_C*.so once. Raises ImportError with what to do when it was not built."""
    if hasattr(torch.ops.ssd, "isa"):
        return
    found = sorted(Path(__file__).parent.parent.glob("_C*.so"))
    if not found:
        raise ImportError(
            "the kernels of ssd are not built: run `make setup`, or `python setup.py build_ext --inplace`"
        )
    torch.ops.load_library(found[0])


load()
