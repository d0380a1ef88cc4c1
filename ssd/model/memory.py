"""Memory on huge pages, which spares page walks when weights and caches are read."""

import mmap
from math import prod

import torch

HUGE = 2 << 20  # bytes of a huge page
REGION = 32 << 20


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A contiguous CPU tensor, not initialised, on huge pages where the system grants them.

    No part of it takes memory before it is written. Raises MemoryError when the system refuses.
    """
    size = prod(shape) * dtype.itemsize
    try:
        block = mmap.mmap(-1, size + HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as e:
        raise MemoryError(f"no memory for {size / 2**30:.1f} GiB") from e
    if hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            block.madvise(mmap.MADV_HUGEPAGE)
        except OSError:  # a kernel without huge pages
            pass
    raw = torch.frombuffer(block, dtype=torch.uint8)
    first = -raw.data_ptr() % HUGE
    return raw[first : first + size].view(dtype).view(shape)


class Arena:
    """A place for many tensors on shared huge pages; a region is freed with the last of its tensors."""

    def __init__(self):
        self._left = torch.empty(0, dtype=torch.uint8)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        size = prod(shape) * dtype.itemsize
        if size > len(self._left):
            self._left = empty((max(size, REGION),), torch.uint8)
        tensor, self._left = self._left[:size], self._left[-(-size // 64) * 64 :]
        return tensor.view(dtype).view(shape)

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of a tensor in the arena."""
        return self.empty(tensor.shape, tensor.dtype).copy_(tensor)
