"""Builds the host harness of the CUDA kernels once and runs cases on it."""

import hashlib
import os
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import torch

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
CUDA = ROOT / "csrc/cuda"
FLAGS = "-std=c++20 -Og -g1 -ffp-contract=off -Wall -Wno-unknown-pragmas".split()
FAULTS = "address,alignment,bounds,shift,signed-integer-overflow,integer-divide-by-zero"
SANITIZE = [f"-fsanitize={FAULTS}", "-fno-sanitize-recover=all"]


def build(edits: list[tuple[str, str, str]] = (), defines: tuple[str, ...] = ()) -> Path:
    """The path of the harness. edits: (file under csrc/cuda, text, replacement), faults that are planted in a copy."""
    kernels = {str(p.relative_to(CUDA)): p.read_text() for p in sorted(CUDA.rglob("*.cuh"))}
    for name, text, replacement in edits:
        if text not in kernels[name]:
            raise ValueError(f"edits: got {text!r}, which {name} does not hold")
        kernels[name] = kernels[name].replace(text, replacement)
    own = {p.name: p.read_text() for p in sorted(HERE.glob("*.h")) + sorted(HERE.glob("*.cpp"))}
    shared = {p.name: p.read_text() for p in sorted((ROOT / "csrc/include/ssd").glob("*.h"))}
    flags = [*FLAGS, *SANITIZE, *(f"-D{d}" for d in defines)]
    key = hashlib.sha256(repr((kernels, own, shared, flags)).encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"ssd_cuda_host_{os.getuid()}" / key
    if (folder / "harness").exists():
        return folder / "harness"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in kernels.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    compiler = [shutil.which("ccache")] if shutil.which("ccache") else []
    compiler.append(os.environ.get("CXX", "g++"))
    include = [f"-I{folder}", f"-I{HERE}", f"-I{ROOT / 'csrc/include'}"]
    partial = folder / f"harness.{os.getpid()}"
    command = [*compiler, *flags, *include, str(HERE / "harness.cpp"), "-o", str(partial)]
    built = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    if built.returncode:
        raise RuntimeError(built.stderr)
    partial.rename(folder / "harness")
    return folder / "harness"


def _bytes(value) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bool | int | np.integer):
        return struct.pack("<q", int(value))
    if isinstance(value, float):
        return struct.pack("<d", value)
    if isinstance(value, torch.Tensor):
        value = value.contiguous().view(torch.uint8 if value.element_size() == 1 else torch.int16).numpy()
    return np.ascontiguousarray(value).tobytes()


def run(cases: list[dict], harness: Path | None = None) -> list[dict[str, bytes]]:
    """The results of the cases, arrays by name. Raises RuntimeError with the harness's message if it fails."""
    harness = harness or build()
    with tempfile.TemporaryDirectory() as folder:
        source, result = Path(folder) / "cases", Path(folder) / "results"
        with source.open("wb") as f:
            for case in cases:
                for name, value in {"seed": 0, "results": "out", **case, "end": ""}.items():
                    if value is None:
                        continue
                    data = _bytes(value)
                    f.write(struct.pack("<I", len(name)) + name.encode() + struct.pack("<Q", len(data)) + data)
        environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
        done = subprocess.run([harness, source, result], capture_output=True, text=True, env=environment)
        if done.returncode:
            raise RuntimeError(done.stderr)
        return _read(result.read_bytes())


def _read(data: bytes) -> list[dict[str, bytes]]:
    cases, at, case = [], 0, {}
    while at < len(data):
        n = struct.unpack_from("<I", data, at)[0]
        name = data[at + 4 : at + 4 + n].decode()
        size = struct.unpack_from("<Q", data, at + 4 + n)[0]
        at += 12 + n + size
        if name == "end":
            cases.append(case)
            case = {}
        else:
            case[name] = data[at - size : at]
    return cases
