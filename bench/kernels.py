"""Single operators against the roofline and against torch: `python -m bench.kernels --json F`.

`rows`: op, backend, cores, shape, microseconds, gb_per_s, gflop_per_s, roofline_fraction (the longer of bytes by read
bandwidth and operations by peak, both measured in the same run, divided by the time), baselines {name: how many times
as long it takes}, check. A kernel whose check fails gets no ratio. A plot is drawn beside the JSON file.
"""

import argparse
import importlib
import pkgutil
import sys

import torch

from ssd.kernels import library

from . import cases, plots, results
from .machine import cores_of
from .roofline import bind, buffer, cold_bytes
from .timing import REST, interleave, ratio, spread
from .worker import Worker

library.load()


def modules(ops: list[str] | None) -> list[str]:
    names = [m.name for m in pkgutil.iter_modules(cases.__path__)]
    if unknown := set(ops or ()) - set(names):
        raise ValueError(f"ops: got {sorted(unknown)[0]!r}, wanted some of {', '.join(names)}")
    return [n for n in names if ops is None or n in ops]


class Kernels:
    """All cases of some modules on given cores."""

    def __init__(self, cores: list[int]):
        bind(cores)
        self.cores, self.buffer = cores, buffer(cold_bytes())

    def measure(self, module: str, seconds: float) -> list[dict]:
        torch.manual_seed(0)
        made = importlib.import_module(f"bench.cases.{module}").cases("cpu")
        return [self.row(case, seconds) for case in made]

    def row(self, case: cases.Case, seconds: float) -> dict:
        right = bool(case.check())
        candidates = {case.op: case.run, **(case.baselines if right else {})}
        roof = {
            "read": lambda _: torch.ops.ssd.probe_read(self.buffer),
            "fma": lambda _: torch.ops.ssd.probe_fma(1 << 16),
        }
        rest = REST if len(self.cores) > 1 else 0.0
        before = interleave(roof, seconds=0, least=3, rest=rest)
        prepare = {case.op: case.prepare} if case.prepare else None
        times = interleave(candidates, seconds, prepare=prepare, rest=rest)
        after = interleave(roof, seconds=0, least=3, warm_up=0, rest=rest)
        limits = {name: spread(before[name] + after[name])["median"] for name in roof}
        bandwidth, peak = self.buffer.nbytes / limits["read"], torch.ops.ssd.probe_fma(1 << 16) / limits["fma"]
        median = spread(times[case.op])["median"]
        return {
            "op": case.op,
            "backend": case.backend,
            "cores": len(self.cores),
            "shape": case.shape,
            "microseconds": median * 1e6,
            "gb_per_s": case.bytes / median / 1e9,
            "gflop_per_s": case.flops / median / 1e9,
            "roofline_fraction": max(case.bytes / bandwidth, case.flops / peak) / median,
            "baselines": {name: ratio(times, case.op, name) for name in candidates if name != case.op},
            "check": right,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", help=f"some of {', '.join(modules(None))}; all by default")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="the CPU, and the GPU where there is one, by default")
    parser.add_argument("--cores", default="1,2", help="numbers of cores")
    parser.add_argument("--seconds", type=float, default=0.5, help="time to spend on each line")
    parser.add_argument("--gpu-limit", type=float, help="seconds for all lines of the GPU; the rest is left out")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    rows = []
    for n in map(int, args.cores.split(",")) if args.device != "cuda" else ():
        with Worker("bench.kernels:Kernels", cores_of(n), {}) as worker:
            for module in modules(args.ops and args.ops.split(",")):
                rows += worker.call("measure", module=module, seconds=args.seconds)
    if args.device != "cpu" and torch.cuda.is_available():
        from . import kernels_gpu

        wanted = [name for name in kernels_gpu.MODULES if args.ops is None or name in args.ops.split(",")]
        rows += kernels_gpu.measure(wanted, args.seconds, args.gpu_limit)
    elif args.device != "cpu":
        print("no GPU here: rows of the backends triton and cuda are absent", file=sys.stderr)
    columns = ["op", "backend", "cores", "shape", "microseconds", "gb_per_s", "gflop_per_s", "roofline_fraction"]
    print(results.table(rows, [*columns, "baselines", "check"]))
    results.write(args.json, rows)
    plots.beside(args.json, plots.kernels, rows)


if __name__ == "__main__":
    main()
