"""Single operators against the roofline and against torch: `python -m bench.kernels --json F`.

`rows`: op, backend, cores, shape, microseconds, gb_per_s, gflop_per_s, roofline_fraction (the longer of bytes by read
bandwidth and operations by peak, both measured in the same run, divided by the time), baselines {name: how many times
as long it takes}, refused {name: why a baseline does not run here}, check. A kernel whose check fails gets no ratio.
`left_out`: sizes that were not measured, by reason. A plot is drawn beside the JSON file.

Sizes: Llama 1B, 8B, 70B per tensor-parallel rank and SmolLM2; 1, 5, 8, 16, 32 and 64 rows of a tree, behind 128 to
32768 tokens, in batches of 1 to 32, and the forest of a draft. The default sizes are one row and eight rows behind 4096
tokens at batch 1, and those that differ from them in one dimension; --full measures all.
"""

import argparse
import importlib
import os
import pkgutil
import sys

import torch

from ssd.cli.command import guarded, listed
from ssd.kernels import library

from . import cases, plots, results, shapes
from .machine import cores_of, default_cores
from .process import bind, buffer, cold_bytes
from .timing import REST, interleave, ratio, spread
from .worker import Worker

library.load()


def modules(ops: str | None) -> list[str]:
    names = [m.name for m in pkgutil.iter_modules(cases.__path__) if not m.name.endswith("_peers")]
    wanted = ops.split(",") if ops else names
    if unknown := set(wanted) - set(names):
        raise ValueError(f"ops: got {sorted(unknown)[0]!r}, wanted some of {', '.join(names)}")
    return wanted


def selection(models: list[shapes.Model], full: bool, most: int) -> tuple[list[shapes.Size], dict[str, list[str]]]:
    """(sizes to measure, the other sizes by the reason why they are left out). most: bytes of keys and values."""
    chosen, rest = shapes.sizes(models, full)
    large = [size for size in chosen if size.kv_bytes > most]
    left_out = {"without --full": rest, f"keys and values of more than {most / 2**30:.2g} GiB": large}
    return [s for s in chosen if s not in large], {why: list(map(str, left)) for why, left in left_out.items() if left}


def units(wanted: list[str], models: list[shapes.Model]):
    """(module, models) of each call of a worker: attention model by model, everything else at once."""
    for name in wanted:
        for part in [[m] for m in models] if name == "attention" else [models]:
            yield name, part


def most_on_cpu() -> int:
    """An eighth of the memory, in bytes, since the baselines have a copy and the checks need more."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 8


def cases_of(module: str, device: str, chosen: list[shapes.Size]):
    return importlib.import_module(f"bench.cases.{module}").cases(device, chosen)


class Kernels:
    """The measurements of a worker on given cores."""

    def __init__(self, cores: list[int]):
        bind(cores)
        self.cores = cores
        self.buffer = buffer(cold_bytes())
        self.rest = REST if len(cores) > 1 else 0.0
        self.limits = self.roofline(warm_up=1)

    def roofline(self, warm_up: int = 0) -> dict[str, list[float]]:
        calls = {
            "read": lambda _: torch.ops.ssd.probe_read(self.buffer),
            "fma": lambda _: torch.ops.ssd.probe_fma(1 << 16),
        }
        return interleave(calls, seconds=0, least=3, warm_up=warm_up, rest=self.rest)

    def measure(self, module: str, models: str, full: bool, seconds: float) -> list[dict]:
        torch.manual_seed(0)
        chosen, _ = selection(shapes.models(models), full, most_on_cpu())
        return [self.row(case, seconds) for case in cases_of(module, "cpu", chosen)]

    def row(self, case: cases.Case, seconds: float) -> dict:
        right = bool(case.check())
        baselines, refused = case.usable() if right else ({}, {})
        candidates = {case.op: case.run, **baselines}
        prepare = {case.op: case.prepare} if case.prepare else None
        times = interleave(candidates, seconds, prepare=prepare, rest=self.rest)
        before = self.limits
        self.limits = self.roofline()
        limits = {name: spread(before[name] + after)["median"] for name, after in self.limits.items()}
        bandwidth = self.buffer.nbytes / limits["read"]
        peak = torch.ops.ssd.probe_fma(1 << 16) / limits["fma"]
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
            "refused": refused,
            "check": right,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", help=f"some of {', '.join(modules(None))} (all)")
    parser.add_argument("--models", help=f"some of {', '.join(shapes.MODELS)} (all)")
    parser.add_argument("--full", action="store_true", help="measure all sizes, which takes hours on a CPU")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="only this device (both, if there is a GPU)")
    parser.add_argument("--cores", type=listed(int), default=default_cores(), help="numbers of cores (one and all)")
    parser.add_argument("--seconds", type=float, default=0.5, help="time for each row (%(default)s)")
    parser.add_argument("--gpu-limit", type=float, help="seconds for all rows of the GPU (no limit)")
    parser.add_argument("--json", metavar="FILE", help="write the results to this file")
    args = parser.parse_args()
    rows = []
    left_out = {}
    try:
        wanted = modules(args.ops)
        models = shapes.models(args.models)
        cores = [cores_of(n) for n in args.cores] if args.device != "cuda" else []
    except ValueError as e:
        parser.error(str(e))

    def done(more: list[dict]) -> None:  # rows are kept even if a later part fails
        rows.extend(more)
        results.write(args.json, rows, left_out=left_out)

    if args.device != "cuda":
        _, left_out["cpu"] = selection(models, args.full, most_on_cpu())
        for own in cores:
            with Worker("bench.kernels:Kernels", own, {}) as worker:
                for module, part in units(wanted, models):
                    names = ",".join(m.name for m in part)
                    done(worker.call("measure", module=module, models=names, full=args.full, seconds=args.seconds))
    if args.device != "cpu" and torch.cuda.is_available():
        from . import kernels_gpu

        memory = torch.cuda.get_device_properties(0).total_memory
        chosen, left_out["cuda"] = selection(models, args.full, min(8 << 30, memory // 10))
        limit = args.gpu_limit and args.gpu_limit / 2  # two modules have cases for a GPU: attention and linear
        for module in wanted:
            for row in kernels_gpu.rows(cases_of(module, "cuda", chosen), args.seconds, limit):
                done([row])
            if module == "attention":
                left = [size for size in map(str, chosen) if size not in {row["shape"] for row in rows}]
                left_out["cuda"] |= {"no time left": left} if left else {}
                done([])
    elif args.device != "cpu":
        print("no GPU found: rows for the backend triton are left out", file=sys.stderr)
    columns = ["op", "backend", "cores", "shape", "microseconds", "gb_per_s", "gflop_per_s", "roofline_fraction"]
    refused = ["refused"] if any(row.get("refused") for row in rows) else []
    print(results.table(rows, [*columns, "baselines", *refused, "check"]))
    for device, reasons in left_out.items():
        for why, left in reasons.items():
            print(f"{device}: {len(left)} sizes of tree attention left out, {why}", file=sys.stderr)
    plots.beside(args.json, plots.kernels, rows)


if __name__ == "__main__":
    sys.exit(guarded(main, ValueError))
