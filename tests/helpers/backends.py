"""Every backend of the operators behind their public signatures, on CPU tensors: one test covers all backends.

A test module has `ops = backends.fixture("cpu", "triton")`, and its tests call ops.linear(...). triton needs a GPU; but
if TRITON_INTERPRET=1 is set before the start, there is only the Triton backend, in Triton's interpreter, and only the
tests that use `ops` run.
"""

import inspect
import os

import pytest
import torch

from ssd import kernels
from ssd.kernels.linear import FORMATS as CPU_FORMATS

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.bfloat16, "fp16": torch.float16}


def fixture(*names: str):
    if INTERPRETED:
        names = [name for name in names if name == "triton"]
    gpu = {} if INTERPRETED else {"triton": pytest.mark.gpu}
    params = [pytest.param(name, marks=gpu.get(name, ())) for name in names]

    @pytest.fixture(params=params, scope="module")
    def ops(request):
        return Operators(request.param)

    return ops


def affordable(cases: list, few: list) -> list:
    """All cases, or in the interpreter those that it can afford."""
    if any(case not in cases for case in few):
        raise ValueError(f"few: got {few}, wanted some of {cases}")
    return few if INTERPRETED else cases


class Operators:
    """The operators of ssd.kernels in one backend."""

    def __init__(self, name: str):
        self.name, self.tensor_cores = name, name != "cpu"
        self.formats = tuple(FORMATS) if name == "triton" else CPU_FORMATS

    def __getattr__(self, operator: str):
        public = getattr(kernels, operator)
        match self.name:
            case "cpu":
                return public
            case "triton":
                return form_of(operator) if INTERPRETED else on_gpu(public)

    def count(self, n: int, few: int) -> int:
        """The number n, or a small one in the interpreter."""
        return few if INTERPRETED else n

    def activations(self, format: str) -> torch.dtype:
        """The input that linear multiplies with weights of this format."""
        return FORMATS[format] if self.tensor_cores else torch.float32

    def lse_error(self, dtype: torch.dtype) -> float:
        """The weights as tensor cores add them: rounded."""
        return torch.finfo(dtype).eps / 2 if self.tensor_cores and dtype != torch.float32 else 1e-5


def form_of(operator: str):
    from ssd.kernels import cuda

    form = next(form for form in cuda.FORMS if form.__name__ == operator)
    return form if operator != "verify_coupled" else lambda *args, **options: kernels.Verified(*form(*args, **options))


def on_gpu(form):
    """Runs the backend on copies, and applies what it did to its arguments to the originals."""

    def call(*args, **options):
        bound = inspect.signature(form).bind(*args, **options).arguments
        tensors = {name: t for name, t in bound.items() if isinstance(t, torch.Tensor)}
        moved = {name: to_gpu(t) for name, t in tensors.items()}
        result = form(**bound | moved)
        for name in tensors.keys() & {"k_cache", "v_cache"}:
            tensors[name].copy_(moved[name])
        return to_cpu(result)

    return call


def to_cpu(result):
    if result is None or isinstance(result, torch.Tensor):
        return result if result is None else result.cpu()
    moved = [t.cpu() for t in result]
    return type(result)(*moved) if hasattr(result, "_fields") else moved


def to_gpu(t):
    """A copy with the strides of t."""
    storage = t.as_strided((t.untyped_storage().nbytes() // t.element_size(),), (1,), 0).cuda()
    return storage.as_strided(t.shape, t.stride(), t.storage_offset())
