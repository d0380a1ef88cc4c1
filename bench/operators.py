"""Linear layers and tree attention against other packages': `python -m bench.operators --device cuda --json F`.

On a GPU the others are cuBLAS, through torch, torch's SDPA, and flash-attn and FlashInfer where they are installed; the
shapes are those of a Llama-8B and a Llama-1B as target and draft. On the CPU there is torch alone, and tiny shapes show
that all is right. Rows are those of bench.kernels on a GPU: a kernel whose check fails gets no ratio.
"""

import argparse
import sys
from collections.abc import Iterator

import torch

from ssd.cli.command import guarded
from ssd.kernels import library
from ssd.runtime.devices.placement import device_of

from . import kernels_gpu, results
from .cases import Case, attention, linear
from .cases.attention_peers import installed
from .shapes import MODELS, PAGE, TINY, Model, Size

library.load()
PACKAGES = ("flash_attn", "flashinfer")
ROWS = (1, 8, 24)  # a step, a verification, a level of a draft's branches


def cases(device: str, models: list[Model], prefix: int, cold: int) -> Iterator[Case]:
    """The cases of each model: products by rows, then attention behind a prefix. cold: bytes that no cache holds."""
    for m in models:
        for rows in ROWS:
            for name, (n, k) in m.layers.items():
                yield linear.case(f"{m.name} {name} {n} x {k} T={rows} bf16", n, k, rows, "bf16", device)
        for size in (Size(m, 1, 1, prefix), Size(m, 1, 8, prefix), Size(m, 1, 24, prefix, 4)):
            pages = -(-size.length // PAGE) * max(1, min(8, cold // size.kv_bytes))
            cache = attention.kv_cache(m, pages, device)
            yield attention.case(attention.Inputs(size, *cache, cold), "cpu" if device == "cpu" else "triton")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cpu, cuda or cuda:N (%(default)s)")
    parser.add_argument("--seconds", type=float, default=0.1, help="time for each row (%(default)s)")
    parser.add_argument("--limit", type=float, help="seconds for all rows (no limit)")
    parser.add_argument("--json", metavar="FILE", help="write the results to this file")
    args = parser.parse_args(argv)
    device = device_of(args.device)
    if device.type == "cpu":
        models, prefix, sizes = [TINY["tiny"]], 100, {"cold": 1 << 20, "square": 64}
    else:
        torch.cuda.set_device(device)
        models, prefix, sizes = [MODELS["Llama-8B"], MODELS["Llama-1B"]], 4096, {}
    chosen = cases(device.type, models, prefix, sizes.get("cold", kernels_gpu.COLD))
    missing = [name for name in PACKAGES if device.type != "cpu" and not installed(name)]
    rows = []
    for row in kernels_gpu.rows(chosen, args.seconds, args.limit, device.type, **sizes):
        rows.append(row)
        results.write(args.json, rows, missing=missing)  # rows are kept even if a later one fails
    print(results.table(rows, ["op", "backend", "shape", "microseconds", "roofline_fraction", "baselines", "check"]))
    return 0 if all(row.get("check") for row in rows) else 1


if __name__ == "__main__":
    sys.exit(guarded(main, ValueError))
