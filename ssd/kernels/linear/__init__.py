"""Linear layers on packed weights: the same bits for a row at every number of rows."""

import torch

from .. import library  # noqa: F401

FORMATS = ("fp32", "bf16", "int8", "q8_0", "q4_0", "q4_1")
GROUPS = {"int8": (64, 1056), "q8_0": (32, 544), "q4_0": (32, 288), "q4_1": (32, 320)}  # inputs, bytes of 16 outputs
BLOCK_BYTES = {"q8_0": 34, "q4_0": 18, "q4_1": 20}  # of 32 weights in a GGUF file
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def length_of_part(k: int, parts: int) -> int:
    """The inputs of each of so many parts of K, a multiple of 128; the last part may have fewer."""
    return -(-k // (128 * parts)) * 128


def split_of_k(n: int, k: int) -> tuple[int, int]:
    """(parts of K that GPUs sum apart, their length) of a weight of n x k.

    n is that of the whole matrix, so that ranks which hold some of its rows sum as one device does, and the parts are
    enough for a quarter of the rows. They never depend on the rows of an input.
    """
    parts = max(1, min(4 if n <= 12288 else 2 if n <= 24576 else 1, k // 512))
    return parts, length_of_part(k, parts)


def pack_linear(weight: torch.Tensor, format: str, outputs: int | None = None) -> torch.Tensor:
    """Pack a weight matrix for `linear`.

    weight: float32 [N, K], contiguous. format: "fp32", "bf16" (to nearest even), "int8" (symmetric, one fp16 scale per
    output and 64 inputs), or those of GGUF files, whose groups are of 32 inputs: "q8_0" (as int8), "q4_0" (16 levels,
    scale d: d (q - 8)), "q4_1" (scale and minimum: d q + m). For these weight may also be the blocks of such a file,
    uint8 [N, K / 32, 34, 18 or 20], whose numbers are kept. outputs: the rows of the whole matrix, where weight holds
    a part of them. Returns [panels, K, 16] float32 or bfloat16, or uint8 [panels, groups, 1056, 544, 288 or 320]
    (layout: csrc/include/ssd/packed.h). On CUDA, where there is no format of GGUF files, the second dimension counts
    the parts of K (`split_of_k`): [panels, parts, 16, length] ("fp16" too), or uint8 [panels, parts, length / 128,
    2112]. A panel has 16 rows, and a slice of the panels is the packed weight of those rows, with the same parts.
    Raises ValueError or TypeError that names the argument.
    """
    return torch.ops.ssd.pack_linear(weight, format, outputs)


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
def _(weight, format, outputs=None):
    (n, k), panels = weight.shape[:2], -(-weight.shape[0] // 16)
    if weight.device.type != "cpu":
        parts, length = split_of_k(n if outputs is None else outputs, k)
        if format == "int8":
            return weight.new_empty(panels, parts, length // 128, 2112, dtype=torch.uint8)
        return weight.new_empty(panels, parts, 16, length, dtype=DTYPES[format])
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
