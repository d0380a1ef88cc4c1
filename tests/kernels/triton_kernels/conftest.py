"""The Triton kernels run on a GPU, or without one in Triton's interpreter (tests/helpers/interpreter.py)."""

import pytest
import torch
from backends import INTERPRETED

if not INTERPRETED and not torch.cuda.is_available():
    collect_ignore_glob = ["test_*.py"]


def pytest_collection_modifyitems(items):
    for item in () if INTERPRETED else items:
        if "triton_kernels" in item.path.parts:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="session")
def device():
    return "cpu" if INTERPRETED else "cuda"
