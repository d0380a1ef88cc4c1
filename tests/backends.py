"""Every form of tree attention behind the operator's signature, on tensors of the CPU: what a test says of one it says
of all. cuda_host: the CUDA kernels, executed on the host; triton and cuda need a GPU."""

import pytest
import torch

from ssd.kernels import tree_attention
from ssd.kernels.tree_attention.cuda import tree_attention as cuda_tree_attention

NAMES = ["cpu", "cuda_host", *(pytest.param(name, marks=pytest.mark.gpu) for name in ("triton", "cuda"))]


def on_gpu(form, args, options):
    moved = [None if t is None else to_gpu(t) for t in args]
    return [t.cpu() for t in form(*moved, **options)]


def to_gpu(t):
    """A copy with the strides that t has."""
    storage = t.as_strided((t.untyped_storage().nbytes() // t.element_size(),), (1,), 0).cuda()
    return storage.as_strided(t.shape, t.stride(), t.storage_offset())


def on_host(q, k, v, page_table, prefix_lens, row_offsets, mask=None, *, scale, softcap=0.0, return_lse=False):
    from cuda_host import attention_cases, harness

    names = {"q": q, "k": k, "v": v, "page_table": page_table, "prefix_lens": prefix_lens, "row_offsets": row_offsets}
    x = names | {"mask": mask, "scale": scale, "softcap": softcap}
    out, lse = attention_cases.read(x, harness.run([attention_cases.case(x)])[0])
    return out, lse if return_lse else lse[:0]


class Backend:
    """Called as tree_attention is."""

    def __init__(self, name: str):
        self.name, self.tensor_cores = name, name != "cpu"

    def __call__(self, *args, **options):
        if self.name == "cpu":
            return tree_attention(*args, **options)
        if self.name == "cuda_host":
            return on_host(*args, **options)
        return on_gpu(tree_attention if self.name == "triton" else cuda_tree_attention, args, options)

    def need(self, dtype: torch.dtype, head_dim: int = 64) -> None:
        """Skips what this form does not have."""
        if self.name.startswith("cuda") and (dtype == torch.float32 or head_dim not in (64, 80, 96, 128, 256)):
            pytest.skip("CUDA C++ has 16-bit caches and head_dim 64, 80, 96, 128 and 256")
        if self.name == "cuda_host" and (head_dim, dtype) not in ((64, torch.bfloat16), (80, torch.float16)):
            pytest.skip("slow under sanitizers, and test_cuda_host has the others")

    def lse_error(self, dtype: torch.dtype) -> float:
        """Tensor cores sum the weights as they multiply them: rounded."""
        return torch.finfo(dtype).eps / 2 if self.tensor_cores and dtype != torch.float32 else 1e-5
