"""The threads of the calling thread's kernels."""

import os
import threading

import torch

from ssd.kernels import library  # noqa: F401  (loads torch.ops.ssd)

CORES = tuple(torch.ops.ssd.allowed_cores())  # of the process, whatever core a lane pins its thread to


def usable_cores() -> list[int]:
    """Every core that the system grants this process, also where a thread library has bound the main thread."""
    out = []

    def ask():
        os.sched_setaffinity(0, range(os.cpu_count()))
        out.extend(sorted(os.sched_getaffinity(0)))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    return out


def cores_of(threads: int | list[int] | None, name: str = "threads") -> list[int] | None:
    """What torch.ops.ssd.bind_threads takes: a core for each thread, -1 where the system may move it.

    threads: None (the kernels' default: one for each core of the process), a number of threads, or a list of cores.
    Raises ValueError, under that name, for more threads than cores, for a core that the process may not use, and for
    one that comes twice.
    """
    if threads is None:
        return None
    if isinstance(threads, int) and not isinstance(threads, bool):
        if not 1 <= threads <= len(CORES):
            raise ValueError(f"{name}: got {threads}, wanted 1 to {len(CORES)}, the cores of this process")
        return [-1] * threads
    cores = list(threads)
    usable = usable_cores()
    if not cores or len(set(cores)) < len(cores) or not set(cores) <= set(usable):
        raise ValueError(f"{name}: got cores {cores}, wanted different ones out of {usable}")
    return cores


def bind(cores: list[int] | None) -> None:
    """Give the calling thread its kernel threads; None leaves it as it is."""
    if cores is not None:
        torch.ops.ssd.bind_threads(cores)
