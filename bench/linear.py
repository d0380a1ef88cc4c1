"""Packed linear layers from cold memory: `python -m bench.linear --json F`.

One measurement is a pass, as a decode step makes it. For the default target it covers all linear layers (30 layers of
960x576, 576x576, 3072x576 and 576x1536, then 49152x576). For Llama 1B, 8B and 70B per tensor-parallel rank it covers
the four matrices of a decoder layer, in fp32 only with --full. With --shape it covers copies of one matrix.
`rows`: shape, format, cores, rows (of the input), microseconds (of a pass), gb_per_s (packed bytes), gflop_per_s,
bandwidth_fraction (of the bandwidth of a plain read of as many bytes in the same rounds), baselines (how many times as
long torch's linear takes; empty if the check fails), check. Format q4 is that of a GGUF file of four bits: q4_1 in the
layers, q8_0 in the last matrix.
"""

import argparse
import itertools
import sys
from math import ceil

import gguf
import torch
import torch.nn.functional as F

from ssd.cli.command import guarded, listed
from ssd.kernels import library
from ssd.kernels.linear import BLOCK_BYTES
from ssd.model.memory import Arena

from . import plots, results
from .machine import cores_of, default_cores
from .process import bind, buffer, cold_bytes
from .shapes import MODELS, ROWS, Model, models
from .timing import REST, interleave, ratio, spread
from .worker import Worker

library.load()

WHOLE = "SmolLM2-135M"  # the model whose pass covers all layers
# the dtype of torch that is nearest to a format
PEER = {"fp32": torch.float32} | dict.fromkeys(("bf16", "int8", "q4", *BLOCK_BYTES), torch.bfloat16)
INT8_ERROR = 0.02  # largest relative error with activations in groups of eight bits, or weights in int8


def error(y: torch.Tensor, exact: torch.Tensor) -> float:
    return float((y.double() - exact).norm() / exact.norm())


def format_of(format: str, n: int) -> str:
    """The format of a matrix with n outputs, which differs from `format` only for q4."""
    heads = {m.vocab for m in MODELS.values()}
    return format if format != "q4" else "q8_0" if n in heads else "q4_1"


def as_stored(weight: torch.Tensor, format: str) -> torch.Tensor:
    """The weights as a format of GGUF files stores them, dequantised; unchanged for other formats."""
    if format not in BLOCK_BYTES:
        return weight
    kind = gguf.GGMLQuantizationType[format.upper()]
    return torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(weight.numpy(), kind), kind))


def check(y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, format: str) -> bool:
    """Whether the error, on the weights as stored, is at most twice that of torch in the same dtype; where x is rounded
    to eight bits, whether it is at most INT8_ERROR."""
    if format == "int8" or format in BLOCK_BYTES:
        return error(y, x.double() @ weight.double().T) <= INT8_ERROR
    dtype = PEER[format]
    exact = x.double() @ weight.to(dtype).double().T
    return error(y, exact) <= 2 * error(F.linear(x.to(dtype), weight.to(dtype)), exact)


def shapes_of(model: Model) -> list[tuple[int, int]]:
    """(N, K) of each product of a pass."""
    layer = list(model.layers.values())
    return layer * model.depth + [(model.vocab, model.hidden)] if model.name == WHOLE else layer


class Linear:
    def __init__(self, cores: list[int], format: str, shapes: list[tuple[int, int]]):
        bind(cores)
        torch.manual_seed(0)
        self.format = format
        self.cores = cores
        dtype = PEER[format]
        self.weights = {shape: torch.randn(shape) / shape[1] ** 0.5 for shape in map(tuple, shapes)}
        packed = {s: torch.ops.ssd.pack_linear(w, format_of(format, s[0])) for s, w in self.weights.items()}
        self.stored = {s: as_stored(w, format_of(format, s[0])) for s, w in self.weights.items()}
        self.bytes = sum(packed[tuple(s)].nbytes for s in shapes)
        self.flops = sum(2 * n * k for n, k in shapes)
        copies = ceil(cold_bytes() / self.bytes)
        arena = Arena()
        plain = {s: w.to(dtype) for s, w in self.weights.items()}
        self.passes = [[(arena.keep(packed[tuple(s)]), s[0], s[1]) for s in shapes] for _ in range(copies)]
        self.peers = [[(arena.keep(plain[tuple(s)]), s[1]) for s in shapes] for _ in range(copies)]
        self.buffer = buffer(cold_bytes())

    def measure(self, rows: int, seconds: float) -> dict:
        inputs = {k: torch.randn(rows, k) for _, k in self.weights}
        rounded = {k: x.to(PEER[self.format]) for k, x in inputs.items()}

        def ssd(turn):
            for packed, n, k in self.passes[turn % len(self.passes)]:
                torch.ops.ssd.linear(inputs[k], packed, n, None, None)

        def peer(turn):
            for weight, k in self.peers[turn % len(self.peers)]:
                F.linear(rounded[k], weight)

        right = all(
            check(
                torch.ops.ssd.linear(inputs[s[1]], p, n, None, None),
                inputs[s[1]],
                self.stored[s],
                format_of(self.format, n),
            )
            for s, (p, n, _) in {(n, k): (p, n, k) for p, n, k in self.passes[0]}.items()
        )
        candidates = {"read": lambda _: torch.ops.ssd.probe_read(self.buffer), "ssd": ssd, "torch": peer}
        times = interleave(candidates, seconds, rest=REST)
        median = spread(times["ssd"])["median"]
        return {
            "format": self.format,
            "cores": len(self.cores),
            "rows": rows,
            "microseconds": median * 1e6,
            "gb_per_s": self.bytes / median / 1e9,
            "gflop_per_s": self.flops * rows / median / 1e9,
            "bandwidth_fraction": ratio(times, "ssd", "read") * self.bytes / self.buffer.nbytes,
            "baselines": {f"torch {PEER[self.format]}".replace("torch.", ""): ratio(times, "ssd", "torch")}
            if right
            else {},
            "check": right,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", help=f"some of {', '.join(MODELS)} (all)")
    parser.add_argument("--formats", default="fp32,bf16,int8,q4", help="formats of the weights (%(default)s)")
    parser.add_argument("--full", action="store_true", help="measure fp32 for every model")
    parser.add_argument("--cores", type=listed(int), default=default_cores(), help="numbers of cores (one and all)")
    parser.add_argument("--rows", type=listed(int), default=",".join(map(str, ROWS)), help="input rows (%(default)s)")
    parser.add_argument("--shape", help="outputs x inputs of one matrix, such as 960x576, in place of the models")
    parser.add_argument("--seconds", type=float, default=1.0, help="time for each row (%(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write the results to this file")
    args = parser.parse_args()
    rows = []
    left_out = []
    formats = args.formats.split(",")
    try:
        passes = {m.name: shapes_of(m) for m in models(args.models)}
        if args.shape:
            passes = {args.shape: [tuple(map(int, args.shape.split("x")))]}
        cores = [cores_of(n) for n in args.cores]
        if unknown := set(formats) - set(PEER):
            raise ValueError(f"formats: got {sorted(unknown)[0]!r}, wanted some of {', '.join(PEER)}")
    except ValueError as e:
        parser.error(str(e))
    for name, own, format in itertools.product(passes, cores, formats):
        if format == "fp32" and name in MODELS and name != WHOLE and not args.full:
            left_out.append(f"{name} fp32, {len(own)} cores")
            continue
        with Worker("bench.linear:Linear", own, {"format": format, "shapes": passes[name]}) as worker:
            for r in args.rows:
                rows.append({"shape": name, **worker.call("measure", rows=r, seconds=args.seconds)})
        results.write(args.json, rows, left_out=left_out)
    columns = ["shape", "format", "cores", "rows", "microseconds", "gb_per_s", "gflop_per_s", "bandwidth_fraction"]
    print(results.table(rows, [*columns, "baselines", "check"]))
    if left_out:
        print(f"left out without --full: {'; '.join(left_out)}", file=sys.stderr)
    plots.beside(args.json, plots.linear, rows)


if __name__ == "__main__":
    sys.exit(guarded(main, ValueError))
