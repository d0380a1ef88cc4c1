"""Where a lane computes: a set of CPU cores, or a stream of a GPU. Whatever tells one from the other is here.

Lanes meet in host memory: inputs of a pass go up in one copy, tokens (and the hidden states that a feature draft reads)
come down in another. So any pair goes together: two sets of cores, two GPUs, two streams of one GPU, or a GPU for the
target and cores for the draft.
"""

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import fields

import numpy as np
import torch

from ssd.model.batch import Batch

from .threads import bind

ALIGNED = 16  # bytes
DEVICES = ("cpu", "cuda")


def device_of(name: str, argument: str = "device") -> torch.device:
    """The device of a name. Raises ValueError for a name that is none, and for a GPU that is not there."""
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        device = None
    if device is None or device.type not in DEVICES:
        raise ValueError(f"{argument}: got {name!r}, wanted cpu, cuda, or cuda:N")
    count = 1 if device.type == "cpu" else torch.get_device_module(device).device_count()
    if (device.index or 0) >= count:
        raise ValueError(f"{argument}: got {name!r}, but this torch sees {count} GPUs")
    return device


class Placement:
    """The place of a lane. device: where its model is; cores: those of its thread on the CPU, as bind takes them.

    The lane's stream comes after what the calling thread has queued on the device: weights, for instance.
    """

    def __init__(self, device: torch.device | str = "cpu", cores: list[int] | None = None):
        self.device, self.cores = torch.device(device), cores
        self.remote = self.device.type != "cpu"
        self._api = torch.get_device_module(self.device) if self.remote else None
        self._stream = self._api.Stream(self.device) if self.remote else None
        if self.remote:
            self._stream.wait_stream(self._api.current_stream(self.device))

    def reads(self, tensors: Iterable[torch.Tensor]) -> None:
        """Keep the memory of tensors that another stream made until this one is done with them, when they are freed."""
        for t in tensors if self.remote else ():
            t.record_stream(self._stream)

    def enter(self) -> None:
        """Make the calling thread the lane's."""
        if self.remote:
            self._api.set_device(self.device)
        else:
            bind(self.cores)

    def stream(self):
        """A context in which work is queued on the lane's stream."""
        return self._api.stream(self._stream) if self.remote else nullcontext()

    def put(self, *tensors: torch.Tensor | None) -> tuple:
        """Bring host tensors to the device in one transfer; on the CPU they stay as they are."""
        if not self.remote:
            return tensors
        some = [t for t in tensors if t is not None]
        begin, end = [], 0
        for t in some:
            begin.append(end)
            end += -(-t.nbytes // ALIGNED) * ALIGNED
        staging = torch.empty(end, dtype=torch.uint8, pin_memory=True)
        for at, t in zip(begin, some, strict=True):
            staging[at : at + t.nbytes].view(t.dtype).view(t.shape).copy_(t)
        there = staging.to(self.device, non_blocking=True)
        moved = iter([there[at : at + t.nbytes].view(t.dtype).view(t.shape) for at, t in zip(begin, some, strict=True)])
        return tuple(None if t is None else next(moved) for t in tensors)

    def batch(self, batch: Batch) -> Batch:
        return Batch(*self.put(*(getattr(batch, f.name) for f in fields(Batch)))) if self.remote else batch

    def get(self, *tensors: torch.Tensor) -> tuple:
        """Bring tensors to the host, once everything queued before is done."""
        if not self.remote:
            return tensors
        found = [torch.empty(t.shape, dtype=t.dtype, pin_memory=True).copy_(t, non_blocking=True) for t in tensors]
        self._api.current_stream(self.device).synchronize()
        return tuple(found)

    def take(self, rows: torch.Tensor, index: list[int]) -> torch.Tensor:
        """Some rows of a tensor on the device, as a tensor on the device."""
        return rows[self.put(array(index))] if self.remote else self.pick(rows, index)

    def pick(self, rows: torch.Tensor, index) -> torch.Tensor:
        """Some rows of a tensor on the device, as a tensor on the host.

        On the CPU numpy picks them: for a few rows torch wakes threads of its own, which then spin on the lanes' cores
        for milliseconds.
        """
        return self.get(rows[index])[0] if self.remote else torch.from_numpy(rows.numpy()[index])


def array(values, dtype=np.int64) -> torch.Tensor:
    """A tensor of a few numbers; numpy makes it in a third of the time that torch.tensor takes."""
    return torch.from_numpy(np.array(values, dtype))


def placement_of(model, cores: list[int] | None = None) -> Placement:
    """Where a lane computes with a model; a model that names no device is on the CPU."""
    placement = Placement(getattr(model, "device", "cpu"), cores)
    if placement.remote:
        placement.reads(model.tensors())
    return placement


CPU = Placement()
