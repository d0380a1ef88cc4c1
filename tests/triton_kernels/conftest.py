"""The Triton forms on a GPU where there is one, else in Triton's interpreter (TRITON_INTERPRET=1 before the start)."""

import os

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not INTERPRETED and not torch.cuda.is_available():
    collect_ignore_glob = ["test_*.py"]


def pytest_collection_modifyitems(items):
    for item in () if INTERPRETED else items:
        if "triton_kernels" in item.path.parts:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="session")
def device():
    return "cpu" if INTERPRETED else "cuda"


@pytest.fixture(scope="session", autouse=True)
def products_of_sixteen():
    """NumPy's product may sum a row otherwise in another place of the tile; an MMA does not. So the interpreter's dot
    becomes a chain of products of 16 k, each element on its own, as m16n8k16 is; and it learns bfloat16."""
    if not INTERPRETED:
        yield
        return
    import numpy as np
    from triton.runtime import interpreter

    def to_float(handle):
        if handle.dtype.scalar == interpreter.tl.bfloat16:
            return (handle.data.astype(np.uint32) << 16).view(np.float32)
        return handle.data.astype(np.float32)

    def dot(self, a, b, d, *_):
        x, y, total = to_float(a), to_float(b), d.data.copy()
        for k in range(0, x.shape[1], 16):
            total = total + np.add.reduce(x[:, k : k + 16, None] * y[None, k : k + 16], axis=1)
        return interpreter.TensorHandle(total, d.dtype.scalar)

    def bf16(self, value):
        return self.create_fp_trunc(self.get_fp32(value), interpreter.tl.bfloat16)

    patch = pytest.MonkeyPatch()
    patch.setattr(interpreter.InterpreterBuilder, "create_dot", dot)
    patch.setattr(interpreter.InterpreterBuilder, "get_bf16", bf16, raising=False)  # Triton 3.9 has it
    yield
    patch.undo()
