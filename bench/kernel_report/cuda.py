"""CUDA C++ kernels for the kernel report: nvcc compiles one program of their instances for every architecture.

This needs no GPU, but nvcc and cuobjdump, the disassembler, which also comes with Triton.
"""

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..shapes import MODELS, Model, Size, attention_cost
from .sass import instructions

ROOT = Path(__file__).parents[2]
HEAD_DIMS = (64, 80, 96, 128, 256)
DTYPES = {"bf16": "bfloat16", "fp16": "float16"}
SHAPES = {1: (1, 1, 4096), 2: (1, 8, 4096), 4: (1, 64, 4096)}  # by warps along the rows: batch, rows, prefix

SOURCE = """
#include <cstdio>
%(headers)s
using namespace ssd::gpu;
template <class K> void* keep(K* kernel) { return reinterpret_cast<void*>(kernel); }
void* kept[] = {%(kernels)s};
int main() { std::printf("[%(formats)s]", %(shared)s); }
"""


@dataclass
class Kernel:
    """An instance of a kernel."""

    name: str
    header: str
    arguments: str  # template arguments
    symbol: str  # regular expression for a part of its mangled name
    shared: str  # C++ expression for the bytes of its dynamic shared memory
    dtype: str
    head_dim: int
    shape: str
    threads: int = 128
    bytes: int | None = None
    flops: int | None = None


def span(t: str, d: int, wm: int) -> Kernel:
    of_dim = {m.head_dim: m for m in (MODELS["Llama-1B"], MODELS["Llama-8B"])}
    m = of_dim.get(d) or Model(f"32 heads of {d}, 8 of KV", 32 * d, 32, 8, d, 0, 0, 0)
    size = Size(m, *SHAPES[wm])
    shape = f"AttentionShape<{t}, {d}, {wm}>"
    return Kernel(
        f"tree_attention_span_kernel, {16 * wm} rows a tile",
        "attention/dispatch.cuh",
        f"<{shape}>",
        rf"tree_attention_span_kernel\w*{t}ELi{d}ELi{wm}E",
        f"int({shape}::shared_bytes)",
        DTYPES[t],
        d,
        str(size),
        **attention_cost(size, 2),
    )


def merge(t: str, d: int) -> Kernel:
    symbol = rf"tree_attention_merge_kernel\w*{t}ELi{d}E"
    return Kernel(
        "tree_attention_merge_kernel", "attention/dispatch.cuh", f"<{t}, {d}>", symbol, "0", DTYPES[t], d, "any"
    )


def kernels(quick: bool) -> list[Kernel]:
    """All kernels, or if `quick` only the few that the tests compile, in bfloat16 at head_dim 64 and 128."""
    if quick:
        return [span("bf16", 64, 1), span("bf16", 128, 1), merge("bf16", 128)]
    found = []
    for t in DTYPES:
        for d in HEAD_DIMS:
            found += [span(t, d, wm) for wm in SHAPES if wm < 4 or d <= 128] + [merge(t, d)]
    for name, header, shared, shape in (
        ("kv_copy_kernel", "kv_copy.cuh", "copy_shared_bytes(64)", "64 moves"),
        ("verify_swap_kernel", "verify_swap.cuh", "256", "any"),
    ):
        found.append(Kernel(name, header, "", name, shared, "any", 0, shape, threads=32))
    return found


def tool(name: str) -> str:
    """The path of a CUDA tool, which is on PATH or comes with Triton. Raises FileNotFoundError that says what to do."""
    if found := shutil.which(name):
        return found
    try:
        import triton
    except ImportError:
        found = None
    else:
        found = Path(triton.__file__).parent / "backends/nvidia/bin" / name
    if not found or not found.exists():
        raise FileNotFoundError(f"{name}: not found; install the CUDA toolkit, or Triton for its disassembler")
    return str(found)


def compiled(wanted: list[Kernel], archs: tuple[int, ...], folder: Path) -> tuple[str, list[int], dict[int, str]]:
    """(nvcc's log, which has the registers; bytes of shared memory; machine code by architecture)."""
    nvcc = tool("nvcc")
    cuobjdump = tool("cuobjdump")
    names = ", ".join(f"keep({k.name.split(',')[0]}{k.arguments})" for k in wanted)
    text = SOURCE % {
        "headers": "\n".join(f'#include "{h}"' for h in sorted({k.header for k in wanted})),
        "kernels": names,
        "formats": ", ".join(["%d"] * len(wanted)),
        "shared": ", ".join(k.shared for k in wanted),
    }
    source = folder / "kernels.cu"
    program = folder / "kernels"
    source.write_text(text)
    command = [nvcc, "-std=c++20", "-O3", "-Xptxas", "-v", "--threads", "0", str(source), "-o", str(program)]
    command += [f"-gencode=arch=compute_{a},code=sm_{a}" for a in archs]
    command += [f"-I{ROOT / 'csrc/cuda'}", f"-I{ROOT / 'csrc/include'}"]
    built = subprocess.run(command, capture_output=True, text=True)
    if built.returncode:
        raise RuntimeError(built.stderr)
    shared = json.loads(subprocess.run([program], capture_output=True, text=True, check=True).stdout)
    dumps = {}
    for a in archs:
        dump = [cuobjdump, "-arch", f"sm_{a}", "-sass", program]
        dumps[a] = subprocess.run(dump, capture_output=True, text=True, check=True).stdout
    return built.stdout + built.stderr, shared, dumps


def rows(archs: tuple[int, ...], quick: bool = False) -> Iterator[dict]:
    wanted = kernels(quick)
    with tempfile.TemporaryDirectory() as folder:
        log, shared, dumps = compiled(wanted, archs, Path(folder))
    for k, dynamic in zip(wanted, shared, strict=True):
        for arch in archs:
            entry = re.search(rf"entry function '(\w*{k.symbol}\w*)' for 'sm_{arch}'(.*?)Used (\d+) reg", log, re.S)
            symbol, body, registers = entry.groups()
            stack, stores, loads = (int(n) for n in re.findall(r"(\d+) bytes (?:stack|spill)", body))
            code = re.search(rf"Function : {symbol}\n(.*?)(?=\n\s*Function :|\Z)", dumps[arch], re.S)[1]
            yield {
                "kernel": k.name,
                "form": "cuda",
                "arch": f"sm_{arch}",
                "dtype": k.dtype,
                "head_dim": k.head_dim,
                "shape": k.shape,
                "threads": k.threads,
                "registers": int(registers),
                "spill_bytes": stores + loads,
                "stack_bytes": stack,
                "shared_bytes": dynamic,
                **instructions(code),
                "bytes": k.bytes,
                "flops": k.flops,
            }
