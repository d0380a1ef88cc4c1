"""Which programs of a launch have work, by Triton's interpreter: `TRITON_INTERPRET=1 python -m bench.launches.work`.

A program has work if it stores anything, or reads an activation, a weight, a key or a value; one that looks at offsets,
lengths and lists and leaves has none. Integers are real and decide; floats have no memory, so a program ends at the
first of them. Where FEW programs, chosen at random, all have work, all others count as having some; else MOST are run.
Prints a JSON list: for each pass the name, the grid, the programs with work, and whether some of its programs were not
run, of each launch.
"""

import inspect
import json
import math
import sys
from dataclasses import replace

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpretedFunction, InterpreterBuilder

from .passes import forms, passes

FEW, MOST = 64, 4096
NOWHERE = 1 << 60  # an address of what has no memory


class Touched(BaseException):
    """A program has work; no handler of the interpreter may catch it."""


class Payload:
    """A tensor without memory in a launch: its dtype, and an address that no program reaches."""

    def __init__(self, tensor: torch.Tensor):
        self.dtype = tensor.dtype

    def data_ptr(self) -> int:
        return NOWHERE


class Counter:
    """Takes the place of the interpreter's launcher, and counts."""

    def __init__(self):
        self.found: list[tuple[str, tuple, float, bool]] = []
        self.known: dict[tuple, tuple[float, bool]] = {}  # by launch: what holds whatever the integers
        self.start()

    def start(self) -> None:
        """Forget what the integers of a pass decided."""
        self.found, self.here = [], {}
        self.rooms: dict[int, tuple] = {}  # by storage: a meta tensor of integers, kept alive, and its memory
        self.stored = self.listed = self.read = False  # by the program; by the launch: integers written, and read

    def argument(self, value):
        """A tensor of integers has memory, that of a meta tensor is made here; any other tensor has none."""
        if not isinstance(value, torch.Tensor):
            return value
        if value.device.type == "cpu" and not value.dtype.is_floating_point:
            return value
        if value.dtype not in (torch.int32, torch.int64):
            return Payload(value)
        storage = value.untyped_storage()
        if storage._cdata not in self.rooms:
            self.rooms[storage._cdata] = value, torch.zeros(storage.nbytes(), dtype=torch.uint8)
        room = self.rooms[storage._cdata][1].view(value.dtype)
        return room.as_strided(value.shape, value.stride(), value.storage_offset())

    def look(self, pointers, mask) -> None:
        if (pointers.data[mask.data] >= NOWHERE).any():
            raise Touched

    def launch(self, kernel, *args, grid, warmup, **kwargs) -> None:
        bound = kernel.signature.bind(*args, **{k: v for k, v in kwargs.items() if k in kernel.arg_names}).arguments
        like = [(v.dtype, v.shape) if isinstance(v, torch.Tensor) else v for v in bound.values()]
        key = kernel.fn.__name__, tuple(grid), str(like)
        work = self.known.get(key, self.here.get(key))
        if work is None:
            self.listed = self.read = False
            work = self.count(kernel, (*grid, 1, 1)[:3], {k: self.argument(v) for k, v in bound.items()})
            if not self.listed:  # layers of a pass have the same batch, but each list is made
                (self.here if self.read else self.known)[key] = work
        self.found.append((*key[:2], *work))

    def count(self, kernel, grid: tuple, bound: dict) -> tuple[float, bool]:
        """The programs with work, and whether some programs were not run."""
        fn, build, total = kernel.rewrite(), interpreter.interpreter_builder, math.prod(grid)
        order = np.random.default_rng(0).permutation(total)[:MOST]
        work, ran = 0, 0
        args = {k: v if k in constants(kernel) else interpreter._implicit_cvt(v) for k, v in bound.items()}
        build.set_grid_dim(*grid)
        for x, y, z in zip(*np.unravel_index(order, grid), strict=True):
            build.set_grid_idx(int(x), int(y), int(z))
            self.stored = False
            try:
                fn(**args)
            except Touched:
                self.stored = True
            work, ran = work + self.stored, ran + 1
            if ran == FEW == work and not self.listed:
                break
        if self.listed and ran < total:
            raise RuntimeError(f"{kernel.fn.__name__}: stores integers in {total} programs, wanted at most {MOST}")
        return work * total / ran, ran < total


def constants(kernel) -> list[str]:
    return [name for name, p in kernel.signature.parameters.items() if "constexpr" in str(p.annotation)]


def counting() -> Counter:
    """Patches the interpreter of this process."""
    counter = Counter()
    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

    def masked_load(self, pointers, mask, *rest):
        counter.look(pointers, mask)
        counter.read = True
        return load(self, pointers, mask, *rest)

    def masked_store(self, pointers, value, mask, *rest):
        counter.look(pointers, mask)
        if mask.data.any():
            counter.stored = counter.listed = True
        return store(self, pointers, value, mask, *rest)

    InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store = masked_load, masked_store
    interpreter.interpreter_builder.options = replace(interpreter.interpreter_builder.options, sanitize_overflow=False)
    for fn in (counting, tl.sum.fn):  # for good; the interpreter does it at every call
        interpreter._patch_lang(fn)
    InterpretedFunction.__call__ = lambda self, *args, **kwargs: self.rewrite()(*args, **kwargs)
    InterpretedFunction.run = lambda self, *args, **kwargs: counter.launch(self, *args, **kwargs)
    InterpretedFunction.signature = property(lambda self: inspect.signature(self.fn))
    return counter


def main() -> None:
    counter, found = counting(), []
    with torch.inference_mode(), forms():
        for p in passes(*sys.argv[1:2]):
            counter.start()
            p.run()
            found.append(counter.found)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
