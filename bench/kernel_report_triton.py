"""Compiles Triton kernels without a GPU: wrappers run on meta tensors, launches are recorded, then compiled for a target."""

import contextlib
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

TYPES = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int8: "i8",
    torch.uint8: "u8",
}
OPTIONS = ("num_warps", "num_stages", "maxnreg", "enable_fp_fusion")
TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"


@dataclass
class Launch:
    kernel: JITFunction
    grid: tuple[int, ...]
    args: dict
    options: dict

    @property
    def name(self) -> str:
        return self.kernel.fn.__name__


@contextlib.contextmanager
def recorded():
    """Records every launch in a list instead of running it."""
    launches = []

    def run(self, *args, grid, warmup, **kwargs):
        options = {k: kwargs.pop(k) for k in OPTIONS if k in kwargs}
        launches.append(Launch(self, grid, self.signature.bind(*args, **kwargs).arguments, options))

    kept, JITFunction.run = JITFunction.run, run
    try:
        yield launches
    finally:
        JITFunction.run = kept


def compile_launch(launch: Launch, arch: int):
    """The compiled kernel, specialised as a launch with these arguments would be (pointers divisible by 16)."""
    signature, constants, attrs = {}, {}, {}
    for i, param in enumerate(launch.kernel.params):
        value = launch.args[param.name]
        if param.is_constexpr or value is None or (type(value) is int and value == 1):
            signature[param.name], constants[param.name] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            signature[param.name] = "*" + TYPES[value.dtype]
            attrs[(i,)] = [["tt.divisibility", 16]]
        elif isinstance(value, int):
            signature[param.name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            if value % 16 == 0:
                attrs[(i,)] = [["tt.divisibility", 16]]
        else:
            signature[param.name] = "fp32"
    source = ASTSource(launch.kernel, signature, constants, attrs)
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=launch.options)


def disassemble(compiled) -> dict:
    """Registers, spills and instructions of the machine code."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        sass, usage = (
            subprocess.run([TOOLS / "cuobjdump", flag, file.name], capture_output=True, text=True, check=True).stdout
            for flag in ("-sass", "-res-usage")
        )
    count = {m: len(re.findall(rf"\b{m}\b", sass)) for m in ("STL", "LDL")}
    mma = sorted(set(re.findall(r"\b((?:HMMA|HGMMA|UTCHMMA|IMMA|QGMMA)[.\w]*)", sass)))
    registers, stack = (int(re.search(rf"\b{k}:(\d+)", usage)[1]) for k in ("REG", "STACK"))
    return {
        "registers": registers,
        "spill_bytes": 0 if not any(count.values()) else stack,
        "stack_bytes": stack,
        "shared_bytes": compiled.metadata.shared,
        "mma": mma,
        "wide_loads": len(re.findall(r"\b(?:LDG|LDGSTS)\S*\.128\b", sass)),
    }
