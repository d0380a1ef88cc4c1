"""Every Triton launch that the product makes, without a GPU: `python -m bench.launches --json F`.

`rows`, one for each model, pass and context: model, weights, pass (ar: plain decoding; verify: chains; draft: the
deepest nodes of a forest; prompt: a chunk), rows, sequences, context, launches (of Triton), torch_launches, ctas
(programs of all launches), ctas_with_work, scratch_bytes (the most that an operator allocates beside its results),
host_microseconds (Python's time, without compiler and driver), compiles (kernels that the pass needs). attention_ctas
and attention_ctas_with_work are those of tree attention; estimated: whether they were counted on a sample.
`specialisations`: how many kernels a model needs for all rows and batches up to 64, and which arguments are to blame.

With --lower every signature of these passes, and of all other calls of the operators, is lowered for sm_80, sm_90 and
sm_100, and one of each kernel is compiled to the end. The command ends with an error that names the launches that fail.
docs/kernels-cuda.md says how to read the table.
"""

import argparse
import json
import math
import os
import subprocess
import sys
from itertools import groupby

import torch

from ssd.cli.command import guarded

from .. import results
from ..kernel_report.triton import recorded
from . import specialisations
from .calls import calls
from .measure import measured
from .passes import forms, passes
from .signatures import Signature, distinct, failures, signatures_of

ARCHS = (80, 90, 100)
COLUMNS = (
    "model weights pass rows sequences context launches torch_launches ctas ctas_with_work attention_ctas "
    "attention_ctas_with_work estimated scratch_bytes host_microseconds compiles"
).split()


def worked(name: str) -> list[list]:
    """What bench.launches.work prints."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-W", "ignore", "-m", "bench.launches.work", name]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    if run.returncode:
        raise RuntimeError(f"the interpreter failed: {run.stderr[-2000:]}")
    return json.loads(run.stdout)


def table(name: str) -> list[dict]:
    """The rows of all passes of models whose name contains `name`."""
    with torch.inference_mode(), forms():
        rows = [measured(p) for p in passes(name)]
    for row, launches in zip(rows, worked(name), strict=True):
        grids = row.pop("grids")
        if grids != [(kernel, tuple(grid)) for kernel, grid, *_ in launches]:
            raise RuntimeError(f"{row['model']}, {row['pass']}: the interpreter made other launches")
        attention = [launch for launch in launches if launch[0].startswith("tree_attention")]
        row["ctas_with_work"] = round(sum(work for *_, work, _ in launches))
        row["attention_ctas"] = sum(math.prod(grid) for _, grid, *_ in attention)
        row["attention_ctas_with_work"] = round(sum(work for *_, work, _ in attention))
        row["estimated"] = any(sampled for *_, sampled in attention)
    return rows


def every_signature(name: str = "") -> list[Signature]:
    """One signature for each kernel that passes and calls need."""
    with torch.inference_mode(), forms(), recorded() as launches:
        for p in passes(name):
            p.run()
        for _, call in calls():
            call()
    return distinct(signatures_of(launches))


def lowered(name: str) -> None:
    found = every_signature(name)
    print(f"{len(found)} signatures of {len({s.kernel for s in found})} kernels")
    failed = failures(found, ARCHS)
    failed += failures([next(group) for _, group in groupby(sorted(found, key=kernel), kernel)], ARCHS, "cubin")
    if failed:
        sys.exit("\n".join(failed))


def kernel(signature: Signature) -> str:
    return signature.kernel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="", help="only models with this in their name")
    parser.add_argument("--lower", action="store_true", help="lower all signatures in place of counting")
    parser.add_argument("--json", metavar="FILE", help="write the results to this file")
    args = parser.parse_args()
    if os.environ.get("TRITON_INTERPRET") == "1":
        raise ValueError("TRITON_INTERPRET: got 1, wanted it unset; the interpreter is started where it is needed")
    if args.lower:
        lowered(args.model)
        return
    rows = table(args.model)
    needed = list(specialisations.rows(args.model))
    results.write(args.json, rows, specialisations=needed)
    print(results.table(rows, COLUMNS))
    print(results.table(needed, list(needed[0])))


if __name__ == "__main__":
    sys.exit(guarded(main, ValueError))
