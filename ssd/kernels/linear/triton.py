"""Products with few rows: out[r, n] = sum over k of x[r, k] * weight[n, k], weights bf16, fp16, fp32 or int8.

One output element is one chain of m16n8k16 products over a fixed part of K, then a chain of additions over the parts in
order. The parts depend on (N, K) only; tile sizes follow the number of rows, and no tile size enters the chain: no tile
is of a size for which Triton takes other instructions than m16n8k16 (64 rows with a whole number of 4 warps). int8:
a chain per group of 64 k, times its scale, added to the sum of the groups before.
x is rounded to the weights' dtype where it enters; sums, bias, residual and result are float32.
"""

import torch
import triton
import triton.language as tl

from ..check import check_dtypes

GROUP = 64  # k that share a scale
BLOCK = 16  # gate and up alternate in blocks of this many rows
TORCH_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


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
def load_rows(p, o_k, m_r, K, EVEN: tl.constexpr):
    if EVEN:
        return tl.load(p + o_k[None, :], mask=m_r[:, None], other=0)
    else:
        return tl.load(p + o_k[None, :], mask=m_r[:, None] & (o_k < K)[None, :], other=0)


@triton.jit
def add_tile(acc, b_x, b_w, p_s, o_n, m_n, group, INT8: tl.constexpr):
    if INT8:
        b_s = tl.load(p_s + group, mask=m_n, other=0.0).to(tl.float32)  # [BN]
        return acc + tl.dot(b_x, tl.trans(b_w.to(tl.float32).to(b_x.dtype))) * b_s[None, :]
    else:
        return tl.dot(b_x, tl.trans(b_w), acc, input_precision="ieee")


@triton.jit
def linear_fwd_kernel(
    x, weight, scales, bias, residual, out, parts, rows, N, K, x_row, w_row, w_panel, s_panel, residual_row, part_k,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr, INT8: tl.constexpr,
    SWIGLU: tl.constexpr, SPLIT: tl.constexpr, BIAS: tl.constexpr, RESIDUAL: tl.constexpr, DTYPE: tl.constexpr,
    BLOCK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    o_r = tl.program_id(0) * BM + tl.arange(0, BM)
    o_n = tl.program_id(1) * BN + tl.arange(0, BN)  # outputs
    split = tl.program_id(2)
    m_r, m_n = o_r < rows, o_n < N
    o_w = o_n  # rows of the weight
    if SWIGLU:
        o_w = o_n // BLOCK * (2 * BLOCK) + o_n % BLOCK
    p_x = x + o_r.to(tl.int64)[:, None] * x_row
    panel, at = (o_w // BLOCK).to(tl.int64), o_w % BLOCK
    p_w = weight + (panel * w_panel + at * w_row)[:, None]
    p_s = scales + panel * s_panel + at * (w_row // GROUP)
    acc = tl.zeros([BM, BN], tl.float32)
    up = tl.zeros([BM, BN], tl.float32)
    first = split * part_k
    for k in range(first, tl.minimum(first + part_k, K), BK):
        o_k = k + tl.arange(0, BK)
        b_x = load_rows(p_x, o_k, m_r, K, EVEN).to(DTYPE)  # [BM, BK]
        b_w = load_rows(p_w, o_k, m_n, K, EVEN)  # [BN, BK]
        acc = add_tile(acc, b_x, b_w, p_s, o_n, m_n, k // GROUP, INT8)
        if SWIGLU:
            b_u = load_rows(p_w + w_panel, o_k, m_n, K, EVEN)
            up = add_tile(up, b_x, b_u, p_s + s_panel, o_n, m_n, k // GROUP, INT8)
    m = m_r[:, None] & m_n[None, :]
    o_out = o_r.to(tl.int64)[:, None] * N + o_n[None, :]
    if SPLIT > 1:
        size = tl.cast(rows, tl.int64) * N
        p_part = parts + split * size * (2 if SWIGLU else 1) + o_out
        tl.store(p_part, acc, mask=m)
        if SWIGLU:
            tl.store(p_part + size, up, mask=m)
    else:
        if SWIGLU:
            acc = epilogue(bias, residual, acc, o_w, o_r, m, BIAS, False)
            acc = silu_product(acc, epilogue(bias, residual, up, o_w + BLOCK, o_r, m, BIAS, False))
        else:
            acc = epilogue(bias, residual, acc, o_n, o_r.to(tl.int64) * residual_row, m, BIAS, RESIDUAL)
        tl.store(out + o_out, acc.to(out.dtype.element_ty), mask=m)


@triton.jit
def linear_merge_kernel(
    bias, residual, out, parts, rows, N, residual_row,
    BM: tl.constexpr, BN: tl.constexpr, SWIGLU: tl.constexpr, SPLIT: tl.constexpr, BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    o_r = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64)
    o_n = tl.program_id(1) * BN + tl.arange(0, BN)
    m = (o_r < rows)[:, None] & (o_n < N)[None, :]
    o_out = o_r[:, None] * N + o_n[None, :]
    size = tl.cast(rows, tl.int64) * N
    acc = tl.zeros([BM, BN], tl.float32)
    up = tl.zeros([BM, BN], tl.float32)
    for s in tl.static_range(SPLIT):
        if SWIGLU:
            acc += tl.load(parts + 2 * s * size + o_out, mask=m, other=0.0)
            up += tl.load(parts + (2 * s + 1) * size + o_out, mask=m, other=0.0)
        else:
            acc += tl.load(parts + s * size + o_out, mask=m, other=0.0)
    if SWIGLU:
        o_w = o_n // BLOCK * (2 * BLOCK) + o_n % BLOCK
        acc = epilogue(bias, residual, acc, o_w, o_r, m, BIAS, False)
        acc = silu_product(acc, epilogue(bias, residual, up, o_w + BLOCK, o_r, m, BIAS, False))
    else:
        acc = epilogue(bias, residual, acc, o_n, o_r * residual_row, m, BIAS, RESIDUAL)
    tl.store(out + o_out, acc.to(out.dtype.element_ty), mask=m)


def pack_linear(weight, format):
    """Panels of 16 rows, as on the CPU, but row by row within: [N / 16, 16, K] of the format's dtype, or uint8
    [N / 16, 16.5 K]: 16 rows of int8, then 16 rows of K / 64 float16 scales, K padded to a multiple of 64."""
    if format not in (*TORCH_DTYPES, "int8"):
        raise ValueError(f"format: got {format!r}, wanted one of {', '.join((*TORCH_DTYPES, 'int8'))}")
    n, k = weight.shape
    panels = torch.nn.functional.pad(weight, (0, -k % GROUP if format == "int8" else 0, 0, -n % BLOCK))
    panels = panels.unflatten(0, (-1, BLOCK))  # [N / 16, 16, K]
    if format != "int8":
        return panels.to(TORCH_DTYPES[format], copy=True)
    groups = panels.float().unflatten(2, (-1, GROUP))
    scales = (groups.abs().amax(-1) / 127).half()
    quants = (groups / scales.float().clamp(min=2**-24)[..., None]).round().clamp(-127, 127).to(torch.int8)
    return torch.cat([quants.flatten(1).view(torch.uint8), scales.flatten(1).view(torch.uint8)], 1)


def plan(n, k, swiglu):
    """The number of parts of K, by (n, k) alone: enough programs to keep a device busy with tiles of 16 rows."""
    programs = triton.cdiv(n, 32 if swiglu else 16)
    parts = max(1, min(8, 192 // programs, k // 256))
    length = triton.cdiv(triton.cdiv(k, parts), GROUP) * GROUP
    return triton.cdiv(k, length), length


def tiles(rows, part, int8, swiglu):
    """Launch sizes that change no bit: BM, BN, BK, warps, stages, and the registers that spare a few spills."""
    deep = 128 if part % 128 == 0 and not int8 else 64
    if rows <= 16:
        return 16, 16, deep, 2, 5, 255
    if rows <= 128 or int8:
        return 32, 64, 64, 4, 4, 255
    return 64, (32 if swiglu else 64), 64, 2, 4, (None if swiglu else 255)


def launch(x, packed, n, bias, residual, swiglu):
    (rows, k), int8 = x.shape, packed.dtype == torch.uint8
    check_dtypes(torch.float32, bias=bias, residual=residual)
    if x.stride(1) != 1 or (residual is not None and residual.stride(1) != 1):
        raise ValueError(f"x: got strides {x.stride()}, wanted contiguous rows in x and residual")
    w_row = triton.cdiv(k, GROUP) * GROUP if int8 else k
    wanted = (triton.cdiv(n, BLOCK), BLOCK * w_row * 33 // 32) if int8 else (triton.cdiv(n, BLOCK), BLOCK, k)
    if tuple(packed.shape) != wanted or not packed.is_contiguous():
        raise ValueError(f"packed: got shape {tuple(packed.shape)}, wanted contiguous {wanted} for {n} x {k}")
    if int8:
        weight, scales = packed.view(torch.int8), packed.view(torch.float16)[:, BLOCK * w_row // 2 :]
        dtype = x.dtype if x.dtype != torch.float32 else torch.bfloat16
    else:
        weight, scales, dtype = packed, packed, packed.dtype  # no scales to read
    columns = n // 2 if swiglu else n
    out = torch.empty((rows, columns), dtype=x.dtype if swiglu else torch.float32, device=x.device)
    if rows == 0:
        return out
    split, part = plan(n, k, swiglu)
    bm, bn, bk, warps, stages, registers = tiles(rows, part, int8, swiglu)
    parts = torch.empty((split if split > 1 else 0, 1 + swiglu, rows, columns), dtype=torch.float32, device=x.device)
    flags = {
        "SWIGLU": swiglu, "SPLIT": split, "BIAS": bias is not None, "RESIDUAL": residual is not None, "BLOCK": BLOCK,
    }  # fmt: skip
    residual_row = 0 if residual is None else residual.stride(0)
    tl_dtype = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}[dtype]
    linear_fwd_kernel[triton.cdiv(rows, bm), triton.cdiv(columns, bn), split](
        x, weight, scales, bias, residual, out, parts, rows, columns, k,
        x.stride(0), w_row, weight.stride(0), scales.stride(0), residual_row, part,
        BM=bm, BN=bn, BK=bk, EVEN=k % bk == 0 and part % bk == 0, INT8=int8, DTYPE=tl_dtype, GROUP=GROUP, **flags,
        num_warps=warps, num_stages=stages, maxnreg=registers, enable_fp_fusion=False,
    )  # fmt: skip
    if split > 1:
        linear_merge_kernel[triton.cdiv(rows, 4), triton.cdiv(columns, 256)](
            bias, residual, out, parts, rows, columns, residual_row, BM=4, BN=256, **flags, enable_fp_fusion=False
        )
    return out


def linear(x, packed, n, bias=None, residual=None):
    """The product, float32 [R, n]; x: [R, K] float32, bfloat16 or float16."""
    return launch(x, packed, n, bias, residual, False)


def linear_swiglu(x, packed, n, bias=None):
    """The gated product [R, n / 2] in the dtype of x."""
    return launch(x, packed, n, bias, None, True)
