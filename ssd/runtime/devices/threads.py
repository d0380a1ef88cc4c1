"""The threads of the calling thread's kernels."""

import os
import threading
from math import ceil

import torch

from ssd.kernels import library  # noqa: F401  (loads torch.ops.ssd)

from .cpu_quota import cpu_quota

ALLOWED = tuple(torch.ops.ssd.allowed_cores())  # to the process, whatever core a lane pins its thread to


def default_cores(allowed: tuple[int, ...], quota: float | None) -> tuple[int, ...]:
    """The cores that threads get where nothing is said. With a quota of less than `allowed` there is one for each core
    of CPU time, and -1 stands for each: every group of processes has its quota on the same cores."""
    return allowed if quota is None or quota > len(allowed) - 1 else (-1,) * max(1, ceil(quota))


_bound = threading.local()
CORES = default_cores(ALLOWED, cpu_quota())
# A forked process has none of OpenMP's threads, and torch would wait for them.
os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))


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

    threads: None (one for each core of the process, within its CPU quota; the result is None for the kernels' default),
    a number of threads, or a list of cores.
    Raises ValueError, under that name, for more threads than cores, for a core that the process may not use, and for
    one that comes twice.
    """
    if threads is None:
        return None if CORES == ALLOWED else list(CORES)
    if isinstance(threads, int) and not isinstance(threads, bool):
        if not 1 <= threads <= len(ALLOWED):
            raise ValueError(f"{name}: got {threads}, wanted 1 to {len(ALLOWED)}, the cores of this process")
        return [-1] * threads
    cores = list(threads)
    usable = usable_cores()
    if not cores or len(set(cores)) < len(cores) or not set(cores) <= set(usable):
        raise ValueError(f"{name}: got cores {cores}, wanted different ones out of {usable}")
    return cores


def bind(cores: list[int] | None) -> None:
    """Give the calling thread its kernel threads; None leaves it as it is."""
    if cores is None:
        return
    if not getattr(_bound, "before", False):
        # The first parallel loop of torch starts threads that may run where this one may, and with OMP_PROC_BIND it
        # moves this one: so it comes first.
        torch.empty(1 << 20).sum()
        _bound.before = True
    torch.ops.ssd.bind_threads(cores)
