"""Read bandwidth and multiply-add peak of given cores: `python -m bench.roofline --cores 1,2 --json F`.

`rows`: cores, megabytes, gb_per_s, gflop_per_s. Bytes are read by the kernels' own thread pool, four streams a
thread, from a buffer of the stated size; the largest is beyond all caches and is what other benchmarks divide by.
"""

import argparse
import sys

import torch

from ssd.cli.command import guarded, listed
from ssd.kernels import library
from ssd.model import memory

from . import results
from .machine import cores_of, default_cores, last_level_cache
from .timing import interleave, spread
from .worker import Worker

library.load()


def bind(cores: list[int]) -> None:
    """Threads of the kernels and of torch on these cores, in this process (whose OpenMP is bound by its variables)."""
    torch.set_num_threads(len(cores))
    torch.empty(1 << 20).sum()  # torch's threads start before the caller keeps to one core
    torch.ops.ssd.bind_threads(cores)


def buffer(size: int) -> torch.Tensor:
    """At least `size` bytes of distinct pages, huge ones where the system grants them, as weights and caches have."""
    words = (size + 63) // 64 * 8
    return torch.arange(words, out=memory.empty((words,), torch.int64))


def cold_bytes() -> int:
    """Bytes that no cache holds, with a margin."""
    return max(256 << 20, 4 * last_level_cache())


class Probe:
    def __init__(self, cores: list[int]):
        bind(cores)
        self.cores = cores

    def measure(self, seconds: float) -> list[dict]:
        flops = torch.ops.ssd.probe_fma(1 << 20)
        buffers = {size: buffer(size) for size in (64 << 20, cold_bytes())}
        candidates = {str(s): lambda _, x=x: torch.ops.ssd.probe_read(x) for s, x in buffers.items()}
        candidates["fma"] = lambda _: torch.ops.ssd.probe_fma(1 << 20)
        times = interleave(candidates, seconds)
        peak = flops / spread(times["fma"])["median"] / 1e9
        return [
            {
                "cores": len(self.cores),
                "megabytes": size >> 20,
                "gb_per_s": size / spread(times[str(size)])["median"] / 1e9,
                "gb_per_s_best": size / spread(times[str(size)])["min"] / 1e9,
                "gflop_per_s": peak,
            }
            for size in buffers
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--cores", type=listed(int), default=default_cores(), help="numbers of cores; one and all by default"
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="time to spend on each number of cores")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    rows = []
    for n in args.cores:
        with Worker("bench.roofline:Probe", cores_of(n), {}) as worker:
            rows += worker.call("measure", seconds=args.seconds)
    print(results.table(rows, ["cores", "megabytes", "gb_per_s", "gb_per_s_best", "gflop_per_s"]))
    results.write(args.json, rows)


if __name__ == "__main__":
    sys.exit(guarded(main, ValueError))
