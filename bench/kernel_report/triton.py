"""Triton kernels for the kernel report: wrappers run on meta tensors, and their recorded launches are compiled.

This needs no GPU; the assembler and the disassembler come with Triton.
"""

import contextlib
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import triton
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

from ssd.kernels.kv_copy.triton import kv_copy
from ssd.kernels.linear.triton import linear, linear_swiglu, pack_linear
from ssd.kernels.norm.triton import add_rms_norm
from ssd.kernels.rope_append.triton import rope_append
from ssd.kernels.sample.triton import sample
from ssd.kernels.top_f.triton import top_f
from ssd.kernels.tree_attention.triton import tree_attention
from ssd.kernels.verify.triton import verify_coupled

from ..shapes import MODELS, PAGE, Model, Size, attention_cost
from . import buffers
from .in_flight import bytes_in_flight, pipeline, resident, weight_bytes
from .sass import instructions

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
    """A context in which launches are recorded in a list instead of run."""
    launches = []

    def run(self, *args, grid, warmup, **kwargs):
        options = {k: kwargs.pop(k) for k in OPTIONS if k in kwargs}
        launches.append(Launch(self, grid, self.signature.bind(*args, **kwargs).arguments, options))

    kept = JITFunction.run
    JITFunction.run = run
    try:
        yield launches
    finally:
        JITFunction.run = kept


def source_of(launch: Launch, target: GPUTarget) -> ASTSource:
    """The source of a kernel, specialised as Triton does it at a launch with these arguments."""
    kernel, backend = launch.kernel, make_backend(target)
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    bound, specialization, _ = bind(**launch.args)
    _, types, constants, attributes = kernel._pack_args(backend, {}, bound, specialization, {})
    return ASTSource(kernel, types, constants, attributes)


def compile_launch(launch: Launch, arch: int):
    target = GPUTarget("cuda", arch, 32)
    return triton.compile(source_of(launch, target), target=target, options=launch.options)


def lower(launch: Launch, arch: int):
    """The first step of compilation, which is quick: it translates Python to Triton's own language and checks types."""
    target = GPUTarget("cuda", arch, 32)
    source = source_of(launch, target)
    context = ir.context()
    backend = make_backend(target)
    options = backend.parse_options({**source.parse_options(), **launch.options})
    ir.load_dialects(context)
    backend.load_dialects(context)
    return source.make_ir(
        target, options, backend.get_codegen_implementation(options), backend.get_module_map(), context
    )


def disassemble(compiled) -> dict:
    """Registers, spills and instructions of the machine code."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        sass, usage = (
            subprocess.run([TOOLS / "cuobjdump", flag, file.name], capture_output=True, text=True, check=True).stdout
            for flag in ("-sass", "-res-usage")
        )
    spilled = re.search(r"\b(STL|LDL)\b", sass)
    registers, stack = (int(re.search(rf"\b{k}:(\d+)", usage)[1]) for k in ("REG", "STACK"))
    return {
        "registers": registers,
        "spill_bytes": stack if spilled else 0,
        "stack_bytes": stack,
        "shared_bytes": compiled.metadata.shared,
        **instructions(sass),
    }


def memory_of(launch: Launch, compiled, code: dict) -> dict:
    """How a launch of linear keeps memory busy."""
    threads = 32 * launch.options["num_warps"]
    blocks = resident(code["registers"], threads, code["shared_bytes"], "sm_90")
    return {
        "rows": launch.args["rows"],
        "weight_bytes": weight_bytes(launch.args),
        "in_flight_bytes": bytes_in_flight(launch.grid, launch.args, blocks),
        **pipeline(compiled.asm["ttgir"]),
    }


def meta(*shape: int, dtype=torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def ints(*shape: int) -> torch.Tensor:
    return meta(*shape, dtype=torch.int32)


def longs(*shape: int) -> torch.Tensor:
    return meta(*shape, dtype=torch.int64)


def floats(*shape: int) -> torch.Tensor:
    return meta(*shape, dtype=torch.float32)


@dataclass
class Case:
    """One call of an operator."""

    shape: str
    dtype: str
    head_dim: int
    bytes: int  # bytes that have to be read from memory and written to it
    flops: int  # operations of its products
    launches: list[Launch]


def attention(size: Size, dtype: torch.dtype, tree: bool = True) -> Case:
    m = size.model
    total = size.batch * size.rows
    cache = meta(size.batch * size.prefix // PAGE + 8, PAGE, m.kv_heads, m.head_dim, dtype=dtype)
    with recorded() as launches:
        table = ints(size.batch, -(-size.length // PAGE))
        q = meta(total, m.heads, m.head_dim, dtype=dtype)
        mask = longs(total, size.words) if tree else None
        tree_attention(q, cache, cache, table, ints(size.batch), ints(size.batch + 1), mask, m.head_dim**-0.5)
    shape = str(size) if tree else f"{size} chain"
    cost = attention_cost(size, dtype.itemsize, tree)
    return Case(shape, str(dtype).split(".")[1], m.head_dim, launches=launches, **cost)


def product(model: Model, format: str, layer: str, rows: int) -> Case:
    n, k = model.layers[layer]
    packed = pack_linear(floats(n, k), format)
    x = meta(rows, k, dtype=torch.float16 if format == "fp16" else torch.bfloat16)
    swiglu = layer == "gate_up"
    residual = layer in ("o", "down")
    with recorded() as launches:
        if swiglu:
            linear_swiglu(x, packed, n)
        else:
            linear(x, packed, n, None, floats(rows, n) if residual else None)
    moved = packed.nbytes + x.nbytes + rows * (n // 2 * 2 if swiglu else n * 4 * (1 + residual))
    return Case(
        f"{model.name} {layer} {n} x {k} rows {rows}", format, model.head_dim, moved, 2 * rows * n * k, launches
    )


def others(model: Model, rows: int) -> list[Case]:
    """Cases of the kernels without products, whose only cost is the bytes that they move."""
    m = model
    vocab = model.vocab
    made = []
    heads = m.heads + 2 * m.kv_heads
    cache = meta(m.depth, 256, 16, m.kv_heads, m.head_dim)
    filters = (floats(rows), ints(rows), floats(rows), floats(rows), longs(rows), longs(rows))
    one = (floats(1), ints(1), floats(1), floats(1), longs(1), longs(1))

    def case(name, moved, call, *args):
        with recorded() as launches:
            call(*args)
        made.append(Case(f"{m.name} {name} rows {rows}", "bfloat16", m.head_dim, moved, 0, launches))

    hidden = floats(rows, m.hidden)
    logits = floats(rows, vocab)
    case("norm", 14 * rows * m.hidden, add_rms_norm, hidden, hidden, meta(m.hidden), 1e-5)
    tables = floats(8192, m.head_dim // 2)
    qkv = floats(rows, heads * m.head_dim)
    places = (ints(rows), longs(rows), cache[0], cache[0])
    case("rope", 6 * rows * heads * m.head_dim, rope_append, qkv, tables, tables, *places)
    places += (meta(m.head_dim), meta(m.head_dim), 1e-6)
    case("norms and rope", 6 * rows * heads * m.head_dim, rope_append, qkv, tables, tables, *places)
    token = 2 * cache[0, 0, 0].nbytes
    case("kv_copy", 2 * m.depth * rows * token, kv_copy, cache, cache, longs(rows), longs(rows))
    case("sample", 4 * rows * vocab, sample, logits, *filters)
    case("top_f", 4 * rows * vocab, top_f, logits, *filters, 4, longs(rows, 4))
    case("top_f of a draft", 4 * rows * vocab, top_f, logits, *filters, 4)  # as the runtime calls it
    tree = (ints(2), ints(1, rows - 1), meta(1, rows - 1, dtype=torch.int8))
    case("verify_coupled", 4 * rows * vocab, verify_coupled, logits, *tree, *one)
    return made


def cases(quick: bool) -> list[Case]:
    """All cases, or if `quick` only the few that the tests compile, in bfloat16 at head_dim 64 and 128."""
    bf16 = torch.bfloat16
    if quick:
        small = MODELS["Llama-1B"]
        large = MODELS["Llama-8B"]
        return [
            attention(Size(small, 1, 8, 4096), bf16),
            attention(Size(large, 1, 8, 4096), bf16, tree=False),
            *(attention(Size(large, 1, 8, prefix), bf16) for prefix in (128, 4096)),
            product(large, "bf16", "qkv", 8),
            product(small, "int8", "gate_up", 8),
            product(large, "int8", "qkv", 64),
        ]
    found = []
    for m in MODELS.values():
        for dtype in (bf16, torch.float16):
            found += [attention(Size(m, *size), dtype) for size in ((1, 8, 4096), (32, 8, 4096), (1, 8, 32768))]
            found += [attention(Size(m, 1, rows, 4096), dtype, tree=False) for rows in (1, 512)]
            found += [attention(Size(m, 1, 24, prefix, 4), dtype) for prefix in (128, 4096)]
        for format in ("bf16", "int8", *["fp16"] * (m.head_dim == 128)):
            found += [product(m, format, layer, rows) for layer in m.layers for rows in (1, 8, 24, 64, 128, 512)]
    for d in (80, 96):
        m = Model(f"32 heads of {d}, 8 of KV", 32 * d, 32, 8, d, 0, 0, 0)
        found += [attention(Size(m, *size), bf16) for size in ((1, 8, 4096), (32, 8, 4096), (1, 8, 128))]
        found.append(attention(Size(m, 1, 512, 4096), bf16, tree=False))
    return found + others(MODELS["Llama-8B"], 8)


def rows(archs: tuple[int, ...], quick: bool = False) -> Iterator[dict]:
    read: dict[str, dict] = {}  # by hash, since several shapes may share a binary
    for case in cases(quick):
        for launch in case.launches:
            main = launch is max(case.launches, key=lambda x: "_fwd_" in x.name)
            if quick and not main:
                continue
            for arch in archs:
                compiled = compile_launch(launch, arch)
                code = read.get(compiled.hash) or read.setdefault(compiled.hash, disassemble(compiled))
                yield {
                    "kernel": launch.name,
                    "form": "triton",
                    "arch": f"sm_{arch}",
                    "dtype": case.dtype,
                    "head_dim": case.head_dim,
                    "shape": case.shape,
                    "threads": 32 * launch.options.get("num_warps", 4),
                    **code,
                    "bytes": case.bytes if main else None,
                    "flops": case.flops if main else None,
                    **(memory_of(launch, compiled, code) if launch.name == "linear_fwd_kernel" and arch == 90 else {}),
                    **(buffers.pipeline(compiled.asm["ttgir"]) if launch.name == "tree_attention_fwd_kernel" else {}),
                }
