"""This process as benchmarks need it: its threads bound to cores, and memory that no cache holds."""

import torch

from ssd.model import memory

from .machine import last_level_cache


def bind(cores: list[int]) -> None:
    """Binds the threads of the kernels and of torch in this process to these cores. OpenMP itself is bound by the
    variables of `thread_environment`."""
    torch.set_num_threads(len(cores))
    torch.empty(1 << 20).sum()  # torch's threads start before the caller is bound to one core
    torch.ops.ssd.bind_threads(cores)


def buffer(size: int) -> torch.Tensor:
    """A tensor of at least `size` bytes on distinct pages; huge ones if the system grants them, as for weights."""
    words = (size + 63) // 64 * 8
    return torch.arange(words, out=memory.empty((words,), torch.int64))


def cold_bytes() -> int:
    """A number of bytes that no cache holds, with a margin."""
    return max(256 << 20, 4 * last_level_cache())
