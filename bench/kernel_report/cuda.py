"""The CUDA C++ kernels for the kernel report: nvcc compiles csrc/cuda/launch.cu for every architecture.

This needs no GPU, but nvcc and cuobjdump, the disassembler, which also comes with Triton.
"""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from .sass import instructions

ROOT = Path(__file__).parents[2]
LAUNCHES = {"verify_swap_kernel": (32, 256)}  # threads, bytes of dynamic shared memory


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


def compiled(arch: int, folder: Path) -> tuple[str, str]:
    """(nvcc's log, which has the registers; machine code)."""
    nvcc, cuobjdump, binary = tool("nvcc"), tool("cuobjdump"), folder / f"sm_{arch}.cubin"
    command = [nvcc, "-std=c++20", "-O3", "-Xptxas", "-v", f"-arch=sm_{arch}", "-cubin", "-o", str(binary)]
    command += [f"-I{ROOT / 'csrc/include'}", str(ROOT / "csrc/cuda/launch.cu")]
    built = subprocess.run(command, capture_output=True, text=True)
    if built.returncode:
        raise RuntimeError(built.stderr)
    dump = subprocess.run([cuobjdump, "-sass", str(binary)], capture_output=True, text=True, check=True)
    return built.stdout + built.stderr, dump.stdout


def rows(archs: tuple[int, ...], quick: bool = False) -> Iterator[dict]:
    """A row for each kernel and architecture; there are so few that `quick` leaves none out."""
    for arch in archs:
        with tempfile.TemporaryDirectory() as folder:
            log, code = compiled(arch, Path(folder))
        for symbol, body, registers in re.findall(r"entry function '(\w+)'(.*?)Used (\d+) reg", log, re.S):
            (name,) = (name for name in LAUNCHES if name in symbol)
            threads, shared = LAUNCHES[name]
            stack, stores, loads = (int(n) for n in re.findall(r"(\d+) bytes (?:stack|spill)", body))
            yield {
                "kernel": name,
                "form": "cuda",
                "arch": f"sm_{arch}",
                "dtype": "any",
                "head_dim": 0,
                "shape": "any",
                "threads": threads,
                "registers": int(registers),
                "spill_bytes": stores + loads,
                "stack_bytes": stack,
                "shared_bytes": shared,
                **instructions(re.search(rf"Function : {symbol}\n(.*?)(?=\n\s*Function :|\Z)", code, re.S)[1]),
                "bytes": None,
                "flops": None,
            }
