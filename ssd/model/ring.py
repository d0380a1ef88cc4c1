"""Bytes on their way from a file to a device, through a few buffers of pinned memory."""

from collections.abc import Callable

import numpy as np
import torch

BUFFER = 64 << 20  # bytes
BUFFERS = 4


class Ring:
    """Buffers that take turns: while one is copied to a device, the next is filled.

    A buffer is filled again after the event of its copy, never before. Where the device is a GPU buffers are pinned,
    so that a copy runs beside the host. sent: bytes so far.
    """

    def __init__(self, device: torch.device, size: int = BUFFER, buffers: int = BUFFERS):
        self.device, self.size, self.sent = device, size, 0
        self._buffers, self._copies, self._turn = [None] * buffers, [None] * buffers, 0

    def send(self, shape: tuple[int, ...], dtype: torch.dtype, fill: Callable[[np.ndarray], None]) -> torch.Tensor:
        """The tensor on the device, as soon as what was queued on its current stream is done.

        fill: called with one part of the tensor after another, uint8 [bytes], which it overwrites.
        """
        out = torch.empty(shape, dtype=dtype, device=self.device)
        there = out.flatten().view(torch.uint8)
        for begin in range(0, len(there), self.size):
            target = there[begin : begin + self.size]
            part = self._free_buffer()[: len(target)]
            fill(part.numpy())
            self._copies[self._turn] = self._copy(target, part)
            self._turn = (self._turn + 1) % len(self._buffers)
        self.sent += len(there)
        return out

    def _free_buffer(self) -> torch.Tensor:
        i = self._turn
        if self._buffers[i] is None:
            pinned = self.device.type == "cuda"
            self._buffers[i] = torch.empty(self.size, dtype=torch.uint8, pin_memory=pinned)
        if self._copies[i]:
            self._copies[i].synchronize()
        return self._buffers[i]

    def _copy(self, target: torch.Tensor, part: torch.Tensor) -> torch.cuda.Event | None:
        """Queue a copy; its event, or None where it is done already."""
        target.copy_(part, non_blocking=True)
        return torch.cuda.current_stream(self.device).record_event() if self.device.type == "cuda" else None
