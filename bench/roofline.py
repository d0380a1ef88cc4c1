"""Read bandwidth and multiply-add peak of given cores: `python -m bench.roofline --cores 1,2 --json F`.

`rows`: cores, megabytes, gb_per_s, gb_per_s_best, gflop_per_s. The kernels' own thread pool reads a buffer of the given
size in four streams a thread. The largest buffer exceeds all caches; its bandwidth is the one that other benchmarks
divide by.
"""

import argparse
import sys

import torch

from ssd.cli.command import guarded, listed
from ssd.kernels import library

from . import results
from .machine import cores_of, default_cores
from .process import bind, buffer, cold_bytes
from .timing import interleave, spread
from .worker import Worker

library.load()


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
    parser.add_argument("--cores", type=listed(int), default=default_cores(), help="numbers of cores (one and all)")
    parser.add_argument("--seconds", type=float, default=3.0, help="time for each number of cores (%(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write the results to this file")
    args = parser.parse_args()
    rows = []
    for n in args.cores:
        with Worker("bench.roofline:Probe", cores_of(n), {}) as worker:
            rows += worker.call("measure", seconds=args.seconds)
    print(results.table(rows, ["cores", "megabytes", "gb_per_s", "gb_per_s_best", "gflop_per_s"]))
    results.write(args.json, rows)


if __name__ == "__main__":
    sys.exit(guarded(main, ValueError))
