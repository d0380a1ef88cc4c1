"""What Triton's interpreter needs for our kernels: products like those of tensor cores, and sizes at which every path
is taken at lengths that it can afford."""

import numpy as np

_sizes: dict[tuple, int] = {}  # of the product, by module and name


def resize(module, **sizes: int) -> None:
    """Set sizes of a module of kernels."""
    for name, size in sizes.items():
        _sizes.setdefault((module, name), getattr(module, name))
        setattr(module, name, size)


def restore_sizes() -> None:
    """Set the product's own sizes again."""
    for (module, name), size in _sizes.items():
        setattr(module, name, size)


def to_float(handle, bfloat16):
    if handle.dtype.scalar == bfloat16:
        return (handle.data.astype(np.uint32) << 16).view(np.float32)
    return handle.data.astype(np.float32)


def prepare() -> None:
    """Replaces the interpreter's dot by a chain of products of 16 k, each element on its own, as m16n8k16 computes it.
    NumPy's product may sum a row differently in another place of the tile; an MMA does not. The interpreter also learns
    bfloat16, and that for NumPy 2.4 only arrays without dimensions become numbers (Triton 3.6)."""
    from triton.runtime import interpreter

    from ssd.kernels.sample import triton_filters as filters
    from ssd.kernels.tree_attention import triton as tree_attention

    tl = interpreter.tl

    def dot(self, a, b, d, *_):
        x, y, total = to_float(a, tl.bfloat16), to_float(b, tl.bfloat16), d.data.copy()
        for k in range(0, x.shape[1], 16):
            total = total + np.add.reduce(x[:, k : k + 16, None] * y[None, k : k + 16], axis=1)
        return interpreter.TensorHandle(total, d.dtype.scalar)

    def bf16(self, value):
        return self.create_fp_trunc(self.get_fp32(value), tl.bfloat16)

    patch_tensor = interpreter._patch_lang_tensor

    def with_index(tensor, scope):
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = with_index
    interpreter.InterpreterBuilder.create_dot = dot
    interpreter.InterpreterBuilder.get_bf16 = bf16  # only Triton 3.9 has it
    resize(filters, CHUNK=64, BLOCK=32, SCRATCH=3 * 12 * 288)  # a few chunks a row, and of many rows a few at once
    resize(tree_attention, SPAN=32, TILE=16, FAN=2)
