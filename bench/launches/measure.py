"""What a pass launches and what that costs the host, without a GPU.

The launcher is Triton's own, with its wrappers, binder and cache; only the compiler and the call of the driver are left
out. Scratch is what an operator allocates and does not return.
"""

import contextlib
import math
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from ssd.kernels import cuda
from ssd.kernels.tree_attention.triton import plan_attention

from ..kernel_report.triton import recorded
from .passes import Pass

ARCH = 90
REPEATS = 7
MEMORY = ("empty", "new_empty", "empty_strided", "new_empty_strided", "empty_like")  # operations that launch nothing


class Compiled:
    """A kernel whose launch does nothing."""

    function = packed_metadata = None

    def launch_metadata(self, *args) -> None:
        return None

    def run(self, *args) -> None:
        pass


class NullDriver:
    """A driver of one device that nothing is sent to. Each driver has a device number, so caches, of its own."""

    made = 0

    def __init__(self):
        NullDriver.made += 1
        self.device = -NullDriver.made

    def get_current_device(self) -> int:
        return self.device

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", ARCH, 32)


@contextlib.contextmanager
def launched():
    """A context in which launches go to a null driver. Yields a list of the kernels that would have been compiled."""
    compiled, kept, active = [], JITFunction._do_compile, driver._active

    def compile(self, key, signature, device, *rest):
        compiled.append(self)
        return self.device_caches[device][0].setdefault(key, Compiled())

    JITFunction._do_compile = compile
    driver.set_active(NullDriver())
    try:
        yield compiled
    finally:
        JITFunction._do_compile = kept
        driver.set_active(active)


class Allocations(TorchDispatchMode):
    """Counts operations of torch that launch a kernel, and bytes of the memory that was allocated."""

    def __init__(self):
        super().__init__()
        self.kernels, self.kept, self.bytes = 0, [], {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        aliases = [r.alias_info for r in func._schema.returns if r.alias_info is not None]
        views = any(not alias.is_write for alias in aliases)
        self.kernels += not views and func.overloadpacket.__name__ not in MEMORY
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, torch.Tensor) and not aliases:
                storage = tensor.untyped_storage()
                self.kept.append(storage)  # alive, so that no other gets its address
                self.bytes[storage._cdata] = storage.nbytes()
        return out

    def beside(self, results) -> int:
        """Bytes allocated beside those of results."""
        returned = {t.untyped_storage()._cdata for t in results if isinstance(t, torch.Tensor)}
        return sum(n for at, n in self.bytes.items() if at not in returned)


@contextlib.contextmanager
def scratch():
    """A context that yields a dict of the most scratch, in bytes, that each operator allocated in one call."""
    most, patched = {}, []

    def counted(form: Callable) -> Callable:
        def call(*args, **kwargs):
            with Allocations() as allocated:
                result = form(*args, **kwargs)
            size = allocated.beside(result if isinstance(result, tuple) else (result,))
            most[form.__name__] = max(most.get(form.__name__, 0), size)
            return result

        return call

    names = [name for name in sys.modules if name.startswith("ssd.kernels.") and name.endswith(".triton")]
    operators = [form for form in cuda.FORMS if form.__name__ not in ("llama_forward", "pack_linear")]
    operators.append(plan_attention)  # which a pass calls once, for all its layers
    for form in operators:
        for holder in [sys.modules[name] for name in names] + [sys.modules["ssd.kernels"]]:
            for name, value in list(vars(holder).items()):
                if value is form:
                    patched.append((holder, name, form))
                    setattr(holder, name, counted(form))
    try:
        yield most
    finally:
        for holder, name, form in patched:
            setattr(holder, name, form)


def host_time(run: Callable[[], None]) -> tuple[float, int]:
    """(microseconds of CPU time of the calling thread, the median; specialisations that the first call needs)."""
    with launched() as compiled:
        run()
        needed, times = len(compiled), []
        for _ in range(REPEATS):
            begin = time.thread_time()
            run()
            times.append(time.thread_time() - begin)
    if len(compiled) > needed:
        raise RuntimeError(f"{compiled[-1].fn.__name__}: is compiled again in an equal pass")
    return 1e6 * statistics.median(times), needed


def measured(p: Pass) -> dict:
    """The row of a pass, without the CTAs that have work; in "grids" the name and the grid of each launch."""
    with recorded() as launches:
        p.run()
    with recorded(), scratch() as most:
        p.run()
    with recorded(), Allocations() as torch_side:
        p.run()
    microseconds, compiles = host_time(p.run)
    grids = [(launch.name, tuple(launch.grid)) for launch in launches]
    return {
        "model": p.model,
        "weights": p.format,
        "pass": p.kind,
        "rows": p.rows * p.sequences,
        "sequences": p.sequences,
        "context": p.context,
        "launches": len(launches),
        "torch_launches": torch_side.kernels,
        "ctas": sum(math.prod(grid) for _, grid in grids),
        "ctas_with_work": None,
        "scratch_bytes": max(most.values()),
        "host_microseconds": round(microseconds),
        "compiles": compiles,
        "grids": grids,
    }
