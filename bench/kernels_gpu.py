"""The cases of bench.kernels on a GPU: kernels in Triton against torch and other packages.

A measurement is a CUDA graph of a few calls, each on its own inputs. The graphs of all candidates are replayed in turn
with a plain copy, whose bandwidth is the roofline's; so no measurement includes the time to launch from Python. Before
each replay, more memory is written than any cache holds. On the CPU the calls are timed as they are, which shows that
all else works.
"""

import statistics
import time
from collections.abc import Callable, Iterator

import torch

from .cases import Case
from .cases.attention import COLD
from .timing import interleave

SQUARE = 8192


def seconds_of(
    calls: dict, rounds: int, flush: Callable[[], object], device: str, turns: int = 8
) -> dict[str, list[float]]:
    """Seconds of a call in each round, by name. A call takes the number of its turn."""
    if device == "cpu":
        return interleave(calls, seconds=0, least=rounds)
    graphs = {}
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    for name, call in calls.items():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for turn in range(2):
                call(turn)
        torch.cuda.synchronize()
        graphs[name] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[name], stream=stream):
            for turn in range(turns):
                call(turn)
    times = {name: [] for name in calls}
    for counted in range(-1, rounds):
        for name, graph in graphs.items():
            flush()
            events[0].record()
            graph.replay()
            events[1].record()
            torch.cuda.synchronize()
            if counted >= 0:
                times[name].append(events[0].elapsed_time(events[1]) / 1e3 / turns)
    return times


def row(case: Case, rounds: int, copied: torch.Tensor, square: torch.Tensor) -> dict:
    """A row of bench.kernels, whose roofline is the longer of a plain copy's time and a large product's."""
    right = bool(case.check())
    baselines, refused = case.usable() if right else ({}, {})
    roof = {"copy": lambda _: copied[0].copy_(copied[1]), "product": lambda _: square @ square}
    times = seconds_of({case.op: case.run, **baselines, **roof}, rounds, copied[0].zero_, copied.device.type)
    median = {name: statistics.median(t) for name, t in times.items()}
    bandwidth = copied.nbytes / median["copy"]
    peak = 2 * len(square) ** 3 / median["product"]
    taken = median[case.op]
    return {
        "op": case.op,
        "backend": case.backend,
        "shape": case.shape,
        "microseconds": taken * 1e6,
        "gb_per_s": case.bytes / taken / 1e9,
        "gflop_per_s": case.flops / taken / 1e9,
        "roofline_fraction": max(case.bytes / bandwidth, case.flops / peak) / taken,
        "baselines": {name: median[name] / taken for name in baselines},
        "refused": refused,
        "check": right,
    }


def rows(
    cases: Iterator[Case],
    seconds: float,
    limit: float | None = None,
    device: str = "cuda",
    cold: int = COLD,
    square: int = SQUARE,
) -> Iterator[dict]:
    """The rows of as many cases as `limit` seconds allow. The row of a case that cannot run has `error`.

    cold: bytes that no cache holds; square: rows and columns of the product that shows the peak.
    """
    torch.manual_seed(0)
    copied = torch.zeros(2, cold // 2, dtype=torch.uint8, device=device)
    factor = torch.randn(square, square, device=device).bfloat16()
    begin = time.monotonic()
    for case in cases:
        try:
            yield row(case, max(5, int(100 * seconds)), copied, factor)
        except RuntimeError as e:
            yield {"op": case.op, "backend": case.backend, "shape": case.shape, "error": str(e)[:300]}
        if limit and time.monotonic() - begin > limit:
            return
