"""What nvcc makes of the CUDA kernels: registers, spills, instructions and rooflines, without a GPU."""

import json
import math
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
ARCHS = (80, 90, 100)
HEAD_DIMS = (64, 80, 96, 128, 256)
SHARED = {80: 164 << 10, 90: 228 << 10, 100: 228 << 10}  # bytes of a multiprocessor; 64 warps and 65536 registers in all
DEVICES = {"A100": (2.039e12, 312e12), "H100": (3.35e12, 989e12), "H200": (4.8e12, 989e12)}  # bytes/s, bf16 FLOP/s
SHAPES = {  # query heads, KV heads, head_dim, requests, rows a request, prefix
    "Llama-3.2-1B, 1 row, 4k": (32, 8, 64, 1, 1, 4096),
    "Llama-3.2-1B, forest of 32 rows, 4k": (32, 8, 64, 1, 32, 4096),
    "Llama-3.1-8B, 1 row, 4k": (32, 8, 128, 1, 1, 4096),
    "Llama-3.1-8B, 8 rows, 4k": (32, 8, 128, 1, 8, 4096),
    "Llama-3.1-8B, 8 rows, 4k, batch 32": (32, 8, 128, 32, 8, 4096),
    "Llama-3.1-70B of 4 ranks, 8 rows, 32k": (16, 2, 128, 1, 8, 32768),
}
SPAN = 256

SOURCE = """
#include <cstdio>
#include "attention_dispatch.cuh"
#include "kv_copy.cuh"
#include "verify_swap.cuh"
using namespace ssd::gpu;
template <class K> void* keep(K* kernel) { return reinterpret_cast<void*>(kernel); }
void* kept[] = {%(kernels)s};
int main() { std::printf("[%(shared)s]", %(values)s); }
"""


def tool(name: str) -> str | None:
    """Path of a CUDA tool: on PATH, or the one that triton brings."""
    if found := shutil.which(name):
        return found
    try:
        import triton
    except ImportError:
        return None
    path = Path(triton.__file__).parent / "backends/nvidia/bin" / name
    return str(path) if path.exists() else None


def instances(dtypes, head_dims) -> list[dict]:
    """The kernels: name, C++ expression, dtype, head_dim, expression of the dynamic shared memory."""
    found = []
    for t in dtypes:
        for d in head_dims:
            for wm in (1, 2) if d > 128 else (1, 2, 4):
                shape = f"AttentionShape<{t}, {d}, {wm}>"
                kernel = f"tree_attention_span_kernel<{shape}>"
                found.append(entry(f"tree_attention_span (rows {16 * wm})", kernel, t, d, f"int({shape}::shared_bytes)"))
            found.append(entry("tree_attention_merge", f"tree_attention_merge_kernel<{t}, {d}>", t, d, "0"))
    return found


def entry(name, expression, dtype=None, head_dim=None, shared="0"):
    return {"kernel": name, "expression": expression, "dtype": dtype, "head_dim": head_dim, "shared": shared}


def symbol(e: dict) -> str:
    """A pattern of the mangled name."""
    kernel = e["expression"].split("<")[0]
    if "<" not in e["expression"]:
        return rf"\w*{kernel}\w*"
    tail = re.search(r"(\d+)(?:, (\d+)>)?>$", e["expression"])
    if tail[2]:
        return rf"\w*{kernel}\w*{e['dtype']}ELi{tail[1]}ELi{tail[2]}E\w*"
    return rf"\w*{kernel}\w*{e['dtype']}ELi{tail[1]}EE\w*"


def compile_kernels(kernels: list[dict], archs=ARCHS) -> list[dict]:
    """Rows of registers, spills, shared memory and instructions, one for each kernel and architecture."""
    if not tool("nvcc") or not tool("cuobjdump"):
        raise FileNotFoundError("nvcc and cuobjdump are needed: install the CUDA toolkit, or nvcc and triton")
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder) / "kernels.cu", Path(folder) / "kernels"
        text = SOURCE % {
            "kernels": ", ".join(f"keep({e['expression']})" for e in kernels),
            "shared": ", ".join(["%d"] * len(kernels)),
            "values": ", ".join(e["shared"] for e in kernels),
        }
        source.write_text(text)
        include = [f"-I{ROOT / 'csrc/cuda'}", f"-I{ROOT / 'csrc/include'}"]
        targets = [f"-gencode=arch=compute_{a},code=sm_{a}" for a in archs]
        command = [tool("nvcc"), "-std=c++20", "-O3", "-Xptxas", "-v", "--threads", "2", *targets, *include]
        built = subprocess.run([*command, str(source), "-o", str(program)], capture_output=True, text=True)
        if built.returncode:
            raise RuntimeError(f"nvcc: {built.stderr}")
        shared = json.loads(subprocess.run([program], capture_output=True, text=True, check=True).stdout)
        rows = []
        for arch in archs:
            dump = [tool("cuobjdump"), "-arch", f"sm_{arch}", "-sass", program]
            sass = subprocess.run(dump, capture_output=True, text=True, check=True).stdout
            functions = dict(re.findall(r"Function : (\w+)\n(.*?)(?=\n\s*Function :|\Z)", sass, re.S))
            for e, dynamic in zip(kernels, shared, strict=True):
                rows.append(measure(e, arch, dynamic, built.stderr + built.stdout, functions))
        return rows


def measure(e: dict, arch: int, shared: int, log: str, functions: dict[str, str]) -> dict:
    pattern = rf"entry function '({symbol(e)})' for 'sm_{arch}'(.*?)Used (\d+) registers([^\n]*)"
    name, body, registers, rest = re.search(pattern, log, re.S).groups()
    stack, stores, loads = map(int, re.search(r"(\d+) bytes stack.*?(\d+) bytes spill st.*?(\d+) bytes spill l", body).groups())
    static = re.search(r"(\d+) bytes smem", rest)
    code = functions[name]
    wide = re.findall(r"\b(?:LDG|LDGSTS)\.\S*128\S*", code)
    threads = 32 if "verify_swap" in e["kernel"] else 128
    used = shared + int(static[1] if static else 0)
    return {
        "kernel": e["kernel"],
        "arch": f"sm_{arch}",
        "dtype": e["dtype"],
        "head_dim": e["head_dim"],
        "registers": int(registers),
        "spill_bytes": stores + loads,
        "stack_bytes": stack,
        "shared_bytes": used,
        "occupancy": occupancy(arch, int(registers), used, threads),
        "mma": sorted(set(re.findall(r"\bHMMA[.\w]*", code))),
        "wide_loads": len(wide),
    }


def occupancy(arch: int, registers: int, shared: int, threads: int) -> float:
    """Warps that fit a multiprocessor, of 64: registers go by 256 a warp, shared memory costs 1 KiB more a block."""
    warps = threads // 32
    by_registers = 65536 // (math.ceil(registers * 32 / 256) * 256 * warps)
    return min(by_registers, SHARED[arch] // (shared + 1024), 64 // warps, 32) * warps / 64


def roofline(shape) -> dict:
    """Bytes, FLOP and time at the limit of a device for one layer: K, V, q, out and mask once, partial results twice."""
    q_heads, kv_heads, dim, requests, rows, prefix = shape
    keys, spans = prefix + rows, math.ceil((prefix + rows) / SPAN)
    size = 2 * keys * kv_heads * dim * 2 + 2 * rows * q_heads * dim * 2 + 8 * rows
    size += 2 * spans * rows * q_heads * (dim + 2) * 4 if spans > 1 else 0
    size, flops = size * requests, 4 * rows * q_heads * dim * keys * requests
    limit = {name: round(1e6 * max(size / b, flops / f), 3) for name, (b, f) in DEVICES.items()}
    return {"bytes": size, "flops": flops, "roofline_us": limit}


def rows(archs=ARCHS, dtypes=("bf16", "fp16"), head_dims=HEAD_DIMS) -> list[dict]:
    """The CUDA part of the kernel report: a row for each kernel, architecture, dtype and head_dim.

    Rows of tree_attention_span carry bytes, flops and roofline_us by the name of a shape with their head_dim.
    Raises FileNotFoundError where nvcc or cuobjdump is missing.
    """
    kernels = [*instances(dtypes, head_dims), entry("kv_copy", "kv_copy_kernel"), entry("verify_swap", "verify_swap_kernel")]
    table = compile_kernels(kernels, archs)
    for row in table:
        named = {n: roofline(s) for n, s in SHAPES.items() if s[2] == row["head_dim"] and "span" in row["kernel"]}
        for key in ("bytes", "flops", "roofline_us"):
            row[key] = {name: values[key] for name, values in named.items()}
    return table
