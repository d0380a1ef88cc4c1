"""How much of the memory's read bandwidth the passes of target and draft use."""

import statistics
from time import perf_counter

import torch

from ssd.model import memory

from .threads import CORES, bind

MEGABYTES, REPEATS = 512, 3


def read_bandwidth(cores: list[int] | None) -> float:
    """Bytes per second that these cores (as bind takes them) read from memory; the calling thread measures it and is
    bound to them afterwards."""
    bind(cores or [-1] * len(CORES))
    words = memory.empty((MEGABYTES << 17,), torch.int64).fill_(1)
    times = []
    for _ in range(REPEATS):
        begin = perf_counter()
        torch.ops.ssd.probe_read(words)
        times.append(perf_counter() - begin)
    return words.nbytes / statistics.median(times)


def fraction(model, seconds_a_pass: float | None, cores: list[int] | None) -> float | None:
    """The share of the read bandwidth that a pass uses to read its weights; None without passes and on a GPU."""
    if not seconds_a_pass or model.device.type != "cpu":
        return None
    return model.weight_bytes / seconds_a_pass / read_bandwidth(cores)
