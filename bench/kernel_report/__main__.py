"""What the compiler made of every GPU kernel, without a GPU: `python -m bench.kernel_report --json F`.

`rows`: kernel, form (triton, cuda), arch, dtype, head_dim, shape, threads, registers, spill_bytes, stack_bytes,
shared_bytes, occupancy (share of a multiprocessor's warps that are resident), mma (tensor-core instructions),
wide_loads (loads of 128 bits from global memory), narrow_copies (copies of fewer bits from global to shared memory),
bytes, flops, roofline_us {A100, H100, H200} (the longer of bytes by bandwidth and flops by peak); of Triton's linear
also weight_bytes, in_flight_bytes (those on their way at once, on sm_90 of an H200), buffers, waiting_loads and k_order
(bench.kernel_report.in_flight), and of Triton's attention tile_copies, buffers, waits, waiting_loads and wide_copies
(bench.kernel_report.buffers).
A form is a module whose rows(archs, quick) yields these columns up to flops; a form whose tools are missing is named.
The report ends with an error if a kernel of 16-bit weights or caches at head_dim up to 128 breaks a rule: it has no
spills; in attention and linear, it has tensor-core instructions and loads keys, values and weights in 128 bits. So it
does if linear has too few bytes in flight at up to 128 rows, or if its loop waits for a load.
"""

import argparse
import importlib
import sys
from importlib.util import find_spec

from .. import results
from . import buffers
from .in_flight import WANTED, resident, too_few

FORMS = ("triton", "cuda")
ARCHS = (80, 90, 100)
GPUS = {"A100": (2.039e12, 312e12), "H100": (3.35e12, 989e12), "H200": (4.8e12, 989e12)}  # bytes/s, 16-bit flop/s
COLUMNS = (
    "kernel form arch dtype head_dim shape registers spill_bytes shared_bytes occupancy mma wide_loads narrow_copies "
    "in_flight_bytes roofline_us"
).split()


def occupancy(registers: int, threads: int, shared: int, arch: str) -> float:
    """The share of a multiprocessor's 64 warps that are resident."""
    return resident(registers, threads, shared, arch) * (threads // 32) / 64


def finished(row: dict) -> dict:
    row["occupancy"] = occupancy(row["registers"], row["threads"], row["shared_bytes"], row["arch"])
    row["roofline_us"] = row["bytes"] and {
        gpu: 1e6 * max(row["bytes"] / bandwidth, row["flops"] / peak) for gpu, (bandwidth, peak) in GPUS.items()
    }
    return row


def faults(row: dict) -> list[str]:
    if row["dtype"] == "float32" or row["head_dim"] > 128:
        return []
    found = [f"{row['spill_bytes']} bytes spilled"] if row["spill_bytes"] else []
    if row["flops"]:
        found += [] if row["mma"] else ["no tensor-core instruction"]
        found += [] if row["wide_loads"] else ["no 128-bit load"]
        few = row["wide_loads"] // 2 if row["dtype"] == "int8" else 0  # copies of scales have 32 bits
        if "tile_copies" in row:  # of attention, which copies entries of page tables too
            found += buffers.faults(row)
        elif row["narrow_copies"] > few:
            found += [f"{row['narrow_copies']} copies of less than 128 bits"]
    if row.get("weight_bytes"):
        found += [f"{row['waiting_loads']} loads in the loop wait for memory"] if row["waiting_loads"] else []
        order = [4] if row["dtype"] == "int8" else [2]
        found += [] if row["k_order"] == order else [f"takes k in the order {row['k_order']}, wanted {order}"]
        if row["rows"] <= 128 and too_few(row["in_flight_bytes"], row["weight_bytes"]):
            found += [f"{row['in_flight_bytes']:,} of {row['weight_bytes']:,} bytes in flight, wanted {WANTED:,.0f}"]
    return [f"{row['kernel']} {row['arch']} {row['dtype']} {row['shape']}: {fault}" for fault in found]


def report(archs=ARCHS, quick: bool = False, forms=FORMS) -> tuple[list[dict], list[str]]:
    """(rows of all forms that can be compiled here, reasons why the others cannot)."""
    rows = []
    missing = []
    for form in forms:
        if find_spec(f"bench.kernel_report.{form}") is None:
            continue
        try:
            module = importlib.import_module(f"bench.kernel_report.{form}")
            rows += [finished(row) for row in module.rows(archs, quick)]
        except (ImportError, FileNotFoundError) as e:
            missing.append(f"{form}: {e}")
    return rows, missing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="compile only the few kernels of the tests")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=FORMS, help="forms to compile (all)")
    parser.add_argument("--json", metavar="FILE", help="write the results to this file")
    args = parser.parse_args()
    rows, missing = report(quick=args.quick, forms=args.forms)
    results.write(args.json, rows, missing=missing)
    shown = [row | {"mma": ", ".join(row["mma"])} for row in rows]
    print(results.table([dict.fromkeys(COLUMNS) | row for row in shown], list(COLUMNS)))
    for line in missing:
        print(f"not compiled, {line}", file=sys.stderr)
    if broken := [fault for row in rows for fault in faults(row)]:
        sys.exit("\n".join(broken))


if __name__ == "__main__":
    main()
