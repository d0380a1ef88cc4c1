"""Signatures of launches: all that Triton compiles a kernel for. They are recorded where launches are made, in the
interpreter too, can be pickled, and are lowered wherever Triton's compiler is."""

import contextlib
import importlib
import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

from ..kernel_report.triton import OPTIONS, Launch, source_of

ALIGNED = 16  # bytes, and a factor of integers


@dataclass(frozen=True)
class Pointer:
    """A tensor among arguments. aligned: whether its address is a multiple of 16."""

    dtype: torch.dtype
    aligned: bool

    def data_ptr(self) -> int:
        return 0 if self.aligned else 1


class Signature(NamedTuple):
    """A kernel ("module:name"), its arguments (name, value) and its options.

    Tensors are Pointers, and a number that is no constant stands for all of its kind: an integer for those of its width
    that it shares divisibility by 16 with, 1 for itself.
    """

    kernel: str
    arguments: tuple[tuple[str, object], ...]
    options: tuple[tuple[str, object], ...]

    @property
    def name(self) -> str:
        return self.kernel.split(":")[1]

    @property
    def nothing(self) -> tuple[str, ...]:
        """The arguments that are None."""
        return tuple(name for name, value in self.arguments if value is None)

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        return tuple(value.dtype for _, value in self.arguments if isinstance(value, Pointer))

    def launch(self) -> Launch:
        module, name = self.kernel.split(":")
        return Launch(getattr(importlib.import_module(module), name), (), dict(self.arguments), dict(self.options))

    def __str__(self) -> str:
        def shown(value):
            if isinstance(value, Pointer):
                return f"{str(value.dtype).split('.')[1]}*" + " unaligned" * (not value.aligned)
            return str(value)

        arguments = ", ".join(f"{name}={shown(value)}" for name, value in self.arguments)
        return f"{self.name}({arguments}; {', '.join(f'{name}={value}' for name, value in self.options)})"


def representative(value):
    """The argument that stands for all of its kind."""
    if isinstance(value, torch.Tensor):
        return Pointer(value.dtype, value.data_ptr() % ALIGNED == 0)
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        wide = (1 << 40) * (not -(1 << 31) <= value < 1 << 31)
        return value if value == 1 else wide + ALIGNED + (value % ALIGNED > 0)
    return 0.5 if isinstance(value, float) else value


def signature_of(kernel: JITFunction | InterpretedFunction, args: tuple, options: dict) -> Signature:
    """The signature of kernel[grid](*args, **options); options hold keyword arguments of the kernel as well."""
    signature = inspect.signature(kernel.fn)
    own = {name: value for name, value in options.items() if name not in OPTIONS}
    bound = signature.bind(*args, **own)
    bound.apply_defaults()
    constants = {name for name, p in signature.parameters.items() if "constexpr" in str(p.annotation)}
    return Signature(
        f"{kernel.fn.__module__}:{kernel.fn.__name__}",
        tuple((name, v if name in constants else representative(v)) for name, v in bound.arguments.items()),
        tuple((name, value) for name, value in options.items() if name in OPTIONS),
    )


@contextlib.contextmanager
def noted() -> Iterator[dict[Signature, int]]:
    """A context that counts the signatures of all launches, of every thread, while they run as ever."""
    found: dict[Signature, int] = {}

    def noting(run):
        def call(self, *args, grid, warmup, **kwargs):
            signature = signature_of(self, args, kwargs)
            found[signature] = found.get(signature, 0) + 1
            return run(self, *args, grid=grid, warmup=warmup, **kwargs)

        return call

    kept = {kind: kind.run for kind in (JITFunction, InterpretedFunction)}
    for kind, run in kept.items():
        kind.run = noting(run)
    try:
        yield found
    finally:
        for kind, run in kept.items():
            kind.run = run


def signatures_of(launches: Iterable[Launch]) -> list[Signature]:
    """The different signatures of recorded launches, in the order of their first launch."""
    return list(dict.fromkeys(signature_of(launch.kernel, (), launch.args | launch.options) for launch in launches))


def lower(signature: Signature, arch: int, last: str = "ttgir") -> None:
    """Compiles a signature for sm_{arch} up to a stage: "ttir", "ttgir", "llir", "ptx" or "cubin".

    Raises what the compiler raises.
    """
    launch, target = signature.launch(), GPUTarget("cuda", arch, 32)
    source, backend = source_of(launch, target), make_backend(target)
    if last == "cubin":
        triton.compile(source, target=target, options=launch.options)
        return
    options = backend.parse_options({**source.parse_options(), **launch.options})
    context, stages = ir.context(), {}
    ir.load_dialects(context)
    backend.load_dialects(context)
    functions = backend.get_codegen_implementation(options)
    module = source.make_ir(target, options, functions, backend.get_module_map(), context)
    backend.add_stages(stages, options, source.language)
    metadata = {"target": target, **options.__dict__}
    for name, stage in stages.items():
        module = stage(module, metadata)
        if name == last:
            return


def specialised(signature: Signature, arch: int) -> tuple:
    """What Triton tells one compiled kernel from another by: equal for signatures that share their code."""
    launch = signature.launch()
    source = source_of(launch, GPUTarget("cuda", arch, 32))
    parts = source.signature, source.constants, source.attrs, launch.options
    return signature.kernel, *(tuple(sorted((str(k), str(v)) for k, v in part.items())) for part in parts)


def distinct(signatures: Iterable[Signature], arch: int = 90) -> list[Signature]:
    """One signature for each kernel that Triton would compile."""
    return list({specialised(s, arch): s for s in signatures}.values())


def covering(signatures: Iterable[Signature]) -> list[Signature]:
    """One signature for each kernel, pattern of arguments that are None, and dtypes."""
    return list({(s.kernel, s.nothing, s.dtypes): s for s in signatures}.values())


def failures(signatures: Iterable[Signature], archs: Iterable[int], last: str = "ttgir") -> list[str]:
    """A sentence for each signature that an architecture's compiler refuses."""
    found = []
    for signature in signatures:
        for arch in archs:
            try:
                lower(signature, arch, last)
            except Exception as e:  # any kind: the compiler has many errors
                reason = str(e).strip() or repr(e)
                found.append(f"{signature} does not compile for sm_{arch}: {reason}")
    return found
