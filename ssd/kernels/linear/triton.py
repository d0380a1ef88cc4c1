"""Products with few rows: out[r, n] = sum over k of x[r, k] * weight[n, k], weights bf16, fp16, fp32 or int8.

One output element is one chain of m16n8k16 products over a part of K, then a chain of additions over the parts in
order. The parts are those of the packed weight; tile sizes follow the number of rows, and no tile size enters the
chain: no tile is of a size for which Triton takes other instructions than m16n8k16 (64 rows with a whole number of 4
warps). int8: a chain per group of 64 k, times its scale, added to the sum of the groups before.
x is rounded to the weights' dtype where it enters; sums, bias, residual and result are float32.
"""

import torch
import triton
import triton.language as tl

from ..check import check_dtypes
from . import length_of_part, split_of_k

BLOCK = 16  # rows of a panel; gate and up alternate in blocks of as many
GROUP = 64  # k that share a scale
BLOCK_BYTES = BLOCK * (2 * GROUP + 4)  # int8: two groups of a panel, then their scales
TORCH_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SIZES = (  # up to so many rows: rows of the weight in a tile, warps, bytes of buffers, programs with different weights
    (32, 64, 4, 68 << 10, 104),
    (128, 128, 4, 98 << 10, 52),
    (float("inf"), 256, 8, 98 << 10, 104),
)
CHAINS = 8192


@triton.jit
def silu_product(gate, up):
    return gate / (1 + tl.exp(-gate)) * up


@triton.jit
def epilogue(p_bias, p_residual, b_y, o_n, o_row, m, BIAS: tl.constexpr, RESIDUAL: tl.constexpr):
    if BIAS:
        b_y += tl.load(p_bias + o_n[None, :], mask=m, other=0.0).to(tl.float32)
    if RESIDUAL:
        b_y += tl.load(p_residual + o_row[:, None] + o_n[None, :], mask=m, other=0.0).to(tl.float32)
    return b_y


@triton.jit
def times_scale(b_y, pair, i):
    """b_y [BM, BN] times the i-th of the two float16 scales in each int32 of pair [BN]."""
    return b_y * (pair >> 16 * i).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)[None, :]


@triton.jit
def part_of_k(
    x, weight, scales, o_r, panel, at, m_r, m_n, part, K, x_row, part_k, w_panel, w_part, s_panel, s_part,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STEP: tl.constexpr, STAGES: tl.constexpr, EVEN: tl.constexpr,
    INT8: tl.constexpr, SWIGLU: tl.constexpr, DTYPE: tl.constexpr, BLOCK: tl.constexpr, BLOCK_BYTES: tl.constexpr,
):  # fmt: skip
    """The sums over a part of K for rows `at` of the panels, and with SWIGLU for those of the panels behind them."""
    first, o_s = part * part_k, tl.arange(0, STEP)
    p_x = x + o_r.to(tl.int64)[:, None] * x_row
    p_w = weight + (panel * w_panel + part * w_part + at * (BK if INT8 else part_k))[:, None]
    p_s = scales + panel * s_panel + part * s_part + BLOCK * BK // 4 + at
    acc = tl.zeros([BM, BN], tl.float32)
    up = tl.zeros([BM, BN], tl.float32)
    for k in tl.range(0, tl.minimum(part_k, K - first), BK, num_stages=STAGES):
        o_w = k
        if INT8:
            o_w = k // BK * BLOCK_BYTES
            b_s = tl.load(p_s + o_w // 4, mask=m_n, other=0)  # [BN], two scales each
            if SWIGLU:
                b_us = tl.load(p_s + s_panel + o_w // 4, mask=m_n, other=0)
        for i in tl.static_range(BK // STEP):
            o_k = first + k + i * STEP + o_s
            m_x = m_r[:, None]
            if not EVEN:
                m_x = m_x & (o_k < K)[None, :]
            b_x = tl.load(p_x + o_k[None, :], mask=m_x, other=0).to(DTYPE)  # [BM, STEP]
            b_w = tl.load(p_w + o_w + i * STEP + o_s[None, :], mask=m_n[:, None], other=0)  # [BN, STEP]
            if INT8:
                acc += times_scale(tl.dot(b_x, tl.trans(b_w.to(tl.float32).to(DTYPE))), b_s, i)
            else:
                acc = tl.dot(b_x, tl.trans(b_w), acc, input_precision="ieee")
            if SWIGLU:
                b_u = tl.load(p_w + w_panel + o_w + i * STEP + o_s[None, :], mask=m_n[:, None], other=0)
                if INT8:
                    up += times_scale(tl.dot(b_x, tl.trans(b_u.to(tl.float32).to(DTYPE))), b_us, i)
                else:
                    up = tl.dot(b_x, tl.trans(b_u), up, input_precision="ieee")
    return acc, up


@triton.jit(do_not_specialize=["rows"])
def linear_fwd_kernel(
    x, weight, scales, bias, residual, out, partials, rows, N, K, x_row, residual_row, part_k,
    w_panel, w_part, s_panel, s_part,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STEP: tl.constexpr, STAGES: tl.constexpr, EVEN: tl.constexpr,
    INT8: tl.constexpr, DTYPE: tl.constexpr, BLOCK_BYTES: tl.constexpr, SWIGLU: tl.constexpr, PARTS: tl.constexpr,
    FOLD: tl.constexpr, BIAS: tl.constexpr, RESIDUAL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    o_r = tl.program_id(0) * BM + tl.arange(0, BM)
    o_n = tl.program_id(1) * BN + tl.arange(0, BN)  # outputs
    m_r, m_n = o_r < rows, o_n < N
    panel, at = (o_n // BLOCK).to(tl.int64) * (2 if SWIGLU else 1), o_n % BLOCK
    part = tl.program_id(2)  # of those that are summed by one program each
    if FOLD:
        acc = tl.zeros([BM, BN], tl.float32)
        up = tl.zeros([BM, BN], tl.float32)
        for each in range(0, PARTS):
            more, more_up = part_of_k(
                x, weight, scales, o_r, panel, at, m_r, m_n, each, K, x_row, part_k, w_panel, w_part, s_panel, s_part,
                BM, BN, BK, STEP, STAGES, EVEN, INT8, SWIGLU, DTYPE, BLOCK, BLOCK_BYTES,
            )  # fmt: skip
            acc += more
            up += more_up
    else:
        acc, up = part_of_k(
            x, weight, scales, o_r, panel, at, m_r, m_n, part, K, x_row, part_k, w_panel, w_part, s_panel, s_part,
            BM, BN, BK, STEP, STAGES, EVEN, INT8, SWIGLU, DTYPE, BLOCK, BLOCK_BYTES,
        )  # fmt: skip
    m = m_r[:, None] & m_n[None, :]
    o_out = o_r.to(tl.int64)[:, None] * N + o_n[None, :]
    if PARTS > 1 and not FOLD:
        size = tl.cast(rows, tl.int64) * N
        p_part = partials + part * size * (2 if SWIGLU else 1) + o_out
        tl.store(p_part, acc, mask=m)
        if SWIGLU:
            tl.store(p_part + size, up, mask=m)
    else:
        if SWIGLU:
            o_w = (panel * BLOCK + at).to(tl.int32)  # rows of the weight
            acc = epilogue(bias, residual, acc, o_w, o_r, m, BIAS, False)
            acc = silu_product(acc, epilogue(bias, residual, up, o_w + BLOCK, o_r, m, BIAS, False))
        else:
            acc = epilogue(bias, residual, acc, o_n, o_r.to(tl.int64) * residual_row, m, BIAS, RESIDUAL)
        tl.store(out + o_out, acc.to(out.dtype.element_ty), mask=m)


@triton.jit(do_not_specialize=["rows"])
def linear_merge_kernel(
    bias, residual, out, partials, rows, N, residual_row,
    BM: tl.constexpr, BN: tl.constexpr, SWIGLU: tl.constexpr, PARTS: tl.constexpr, BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    o_r = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64)
    o_n = tl.program_id(1) * BN + tl.arange(0, BN)
    m = (o_r < rows)[:, None] & (o_n < N)[None, :]
    o_out = o_r[:, None] * N + o_n[None, :]
    size = tl.cast(rows, tl.int64) * N
    acc = tl.zeros([BM, BN], tl.float32)
    up = tl.zeros([BM, BN], tl.float32)
    for s in tl.static_range(PARTS):
        if SWIGLU:
            acc += tl.load(partials + 2 * s * size + o_out, mask=m, other=0.0)
            up += tl.load(partials + (2 * s + 1) * size + o_out, mask=m, other=0.0)
        else:
            acc += tl.load(partials + s * size + o_out, mask=m, other=0.0)
    if SWIGLU:
        o_w = o_n // BLOCK * (2 * BLOCK) + o_n % BLOCK
        acc = epilogue(bias, residual, acc, o_w, o_r, m, BIAS, False)
        acc = silu_product(acc, epilogue(bias, residual, up, o_w + BLOCK, o_r, m, BIAS, False))
    else:
        acc = epilogue(bias, residual, acc, o_n, o_r * residual_row, m, BIAS, RESIDUAL)
    tl.store(out + o_out, acc.to(out.dtype.element_ty), mask=m)


def pack_linear(weight, format, outputs=None):
    """Panels of 16 rows, each as the parts of K that are summed apart (`split_of_k` for the whole matrix of `outputs`
    rows). A part is [16, length] of the format's dtype; int8: for each 128 inputs 16 rows of them, then for each row
    the float16 scales of both halves, 2112 bytes. Inputs beyond K are 0."""
    if format not in (*TORCH_DTYPES, "int8"):
        raise ValueError(f"format: got {format!r}, wanted one of {', '.join((*TORCH_DTYPES, 'int8'))}")
    n, k = weight.shape
    parts, length = split_of_k(n if outputs is None else outputs, k)
    panels = torch.nn.functional.pad(weight, (0, parts * length - k, 0, -n % BLOCK))
    panels = panels.unflatten(0, (-1, BLOCK)).unflatten(2, (parts, -1)).transpose(1, 2)  # [N / 16, parts, 16, length]
    if format != "int8":
        return panels.to(TORCH_DTYPES[format], memory_format=torch.contiguous_format, copy=True)
    groups = panels.float().unflatten(3, (-1, 2, GROUP)).transpose(2, 3)  # [N / 16, parts, length / 128, 16, 2, 64]
    scales = (groups.abs().amax(-1) / 127).half()
    quants = (groups / scales.float().clamp(min=2**-24)[..., None]).round().clamp(-127, 127).to(torch.int8)
    return torch.cat([quants.flatten(3).view(torch.uint8), scales.flatten(3).view(torch.uint8)], 3)


def tiles(rows, columns, parts, int8, swiglu, size):
    """Launch sizes, which change no bit: BM, BN, warps, stages, and whether one program sums all parts of K.

    Up to 128 rows memory is the limit. So many programs read different weights at once, and have so many buffers, that
    3.4 MB are on their way, what 4.8 TB/s deliver within a latency of 700 ns. At least CHAINS outputs and parts are
    summed at once, since the products of a chain wait for each other. size: bytes of a weight.
    """
    bm = 16 if rows <= 16 else 32
    bn, warps, room, wanted = next(sizes for limit, *sizes in SIZES if rows <= limit)
    crowd = 1 << (rows - 1 >> 5).bit_length() - 1 if rows > 128 else 1  # so sizes change at powers of two alone
    fold = parts > 1 and columns * crowd >= CHAINS and not (int8 and swiglu and rows > 32)  # registers would not do
    while bn > BLOCK and triton.cdiv((1 + swiglu) * columns, bn) * (1 if fold else parts) * crowd < wanted:
        bn //= 2
    inputs = 2 * GROUP if int8 else GROUP
    stages = 1 + max(2, min(8, room // (inputs * (bn * size + bm * max(size, 2)))))
    bn = max(BLOCK, bn // (1 + swiglu))
    return bm, bn, min(warps, bn // 8), stages, fold


def launch(x, packed, n, bias, residual, swiglu):
    (rows, k), int8 = x.shape, packed.dtype == torch.uint8
    check_dtypes(torch.float32, bias=bias, residual=residual)
    if x.stride(1) != 1 or (residual is not None and residual.stride(1) != 1):
        raise ValueError(f"x: got strides {x.stride()}, wanted contiguous rows in x and residual")
    parts = packed.shape[1] if packed.dim() == 4 else 1
    length = length_of_part(k, parts)
    wanted = (triton.cdiv(n, BLOCK), parts, *((length // (2 * GROUP), BLOCK_BYTES) if int8 else (BLOCK, length)))
    if tuple(packed.shape) != wanted or not packed.is_contiguous():
        raise ValueError(f"packed: got shape {tuple(packed.shape)}, wanted contiguous {wanted} for {n} x {k}")
    weight, scales, dtype = packed, packed, packed.dtype  # no scales to read
    if int8:
        weight, scales = packed.view(torch.int8), packed.view(torch.int32)
        dtype = x.dtype if x.dtype != torch.float32 else torch.bfloat16
    columns = n // 2 if swiglu else n
    out = torch.empty((rows, columns), dtype=x.dtype if swiglu else torch.float32, device=x.device)
    if rows == 0:
        return out
    bm, bn, warps, stages, fold = tiles(rows, columns, parts, int8, swiglu, packed.itemsize)
    bk = 2 * GROUP if int8 else GROUP
    apart = 1 if fold else parts
    partials = torch.empty((apart if apart > 1 else 0, 1 + swiglu, rows, columns), dtype=torch.float32, device=x.device)
    flags = {"SWIGLU": swiglu, "PARTS": parts, "BIAS": bias is not None, "RESIDUAL": residual is not None}
    residual_row = 0 if residual is None else residual.stride(0)
    tl_dtype = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}[dtype]
    linear_fwd_kernel[triton.cdiv(rows, bm), triton.cdiv(columns, bn), apart](
        x, weight, scales, bias, residual, out, partials, rows, columns, k, x.stride(0), residual_row, length,
        *weight.stride()[:2], *scales.stride()[:2],
        BM=bm, BN=bn, BK=bk, STEP=GROUP, STAGES=stages, EVEN=k % bk == 0, INT8=int8, DTYPE=tl_dtype,
        BLOCK_BYTES=BLOCK_BYTES, FOLD=fold, BLOCK=BLOCK, **flags,
        num_warps=warps, num_stages=stages, maxnreg=255, enable_fp_fusion=False,
    )  # fmt: skip
    if apart > 1:
        linear_merge_kernel[triton.cdiv(rows, 4), triton.cdiv(columns, 256)](
            bias, residual, out, partials, rows, columns, residual_row, BM=4, BN=256, BLOCK=BLOCK, **flags,
            enable_fp_fusion=False,
        )  # fmt: skip
    return out


def linear(x, packed, n, bias=None, residual=None):
    """The product, float32 [R, n]; x: [R, K] float32, bfloat16 or float16."""
    return launch(x, packed, n, bias, residual, False)


def linear_swiglu(x, packed, n, bias=None):
    """The gated product [R, n / 2] in the dtype of x."""
    return launch(x, packed, n, bias, None, True)
