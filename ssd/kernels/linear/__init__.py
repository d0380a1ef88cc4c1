"""Linear layers on packed weights: the same bits for a row at every number of rows."""

import torch

from .. import library  # noqa: F401

FORMATS = ("fp32", "bf16", "int8", "q8_0", "q4_0", "q4_1")
GROUPS = {"int8": (64, 1056), "q8_0": (32, 544), "q4_0": (32, 288), "q4_1": (32, 320)}  # inputs, bytes of 16 outputs
BLOCK_BYTES = {"q8_0": 34, "q4_0": 18, "q4_1": 20}  # of 32 weights in a GGUF file
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def pack_linear(weight: torch.Tensor, format: str) -> torch.Tensor:
    """Pack a weight matrix for `linear`.

    weight: float32 [N, K], contiguous. format: "fp32", "bf16" (to nearest even), "int8" (symmetric, one fp16 scale per
    output and 64 inputs), or those of GGUF files, whose groups are of 32 inputs: "q8_0" (as int8), "q4_0" (16 levels,
    scale d: d (q - 8)), "q4_1" (scale and minimum: d q + m). For these weight may also be the blocks of such a file,
    uint8 [N, K / 32, 34, 18 or 20], whose numbers are kept. Returns [panels, K, 16] float32 or bfloat16, or uint8
    [panels, groups, 1056, 544, 288 or 320] (layout: csrc/include/ssd/packed.h); on CUDA, where there is no format of
    GGUF files, rows stay whole: [panels, 16, K] ("fp16" too), or uint8 [panels, 1056 groups]. Raises ValueError or
    TypeError that names the argument.
    """
    return torch.ops.ssd.pack_linear(weight, format)


def linear(
    x: torch.Tensor,
    packed: torch.Tensor,
    n: int,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """x W^T (+ bias) (+ residual).

    x: float32 [rows, K], contiguous; packed: from pack_linear, of n outputs; bias: float32 [n]; residual: float32
    [rows, n]. Returns float32 [rows, n]: fp32 accumulation in one fixed order per output; weights in int8 or a format
    of GGUF files also quantise x to int8, per row and group of inputs. Raises ValueError or TypeError that names the
    argument.
    """
    return torch.ops.ssd.linear(x, packed, n, bias, residual)


def linear_swiglu(x: torch.Tensor, packed: torch.Tensor, n: int, bias: torch.Tensor | None = None) -> torch.Tensor:
    """silu(x G^T) * (x U^T) (Shazeer, arXiv 2002.05202), the rows of G and U interleaved in blocks of 16 in packed.

    x: float32 [rows, K]; n: rows of G and U together, a multiple of 32. Returns float32 [rows, n / 2].
    """
    return torch.ops.ssd.linear_swiglu(x, packed, n, bias)


@torch.library.register_fake("ssd::pack_linear")
def _(weight, format):
    k, panels = weight.shape[1], -(-weight.shape[0] // 16)
    if weight.device.type != "cpu":
        shape = (panels, -(-k // 64) * 1056) if format == "int8" else (panels, 16, k)
        return weight.new_empty(shape, dtype=torch.uint8 if format == "int8" else DTYPES[format])
    if format in GROUPS:
        inputs, size = GROUPS[format]
        groups = k if weight.dtype == torch.uint8 else -(-k // inputs)
        return weight.new_empty(panels, groups, size, dtype=torch.uint8)
    return weight.new_empty(panels, k, 16, dtype=torch.float32 if format == "fp32" else torch.bfloat16)


@torch.library.register_fake("ssd::linear")
def _(x, packed, n, bias=None, residual=None):
    return x.new_empty(x.shape[0], n, dtype=torch.float32)


@torch.library.register_fake("ssd::linear_swiglu")
def _(x, packed, n, bias=None):
    return x.new_empty(x.shape[0], n // 2)
