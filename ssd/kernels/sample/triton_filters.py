"""The filters in Triton: statistics of a row in chunks, its tokens sorted in blocks, then one program finds the cuts.

A token is known by the bits of -z, z the scaled logit, which ascend as z descends. Many programs sort a block of them
each; the last one descends the bits, 4 at a time, and bisects each block for what lies below. Top-k weighs a token as 1
and top-p as floor(exp(z) 2^40), exp in float32: sums of integers, which are the same in any order and for any number of
rows and programs. Ties at a cut go to the lower ids. A row that asks for neither costs a look at its parameters.
"""

import torch
import triton
import triton.language as tl

from ..check import check_dtypes

CHUNK = 4096  # tokens of a program
BLOCK = 1024  # tokens that a program sorts
SCRATCH = 60_000_000  # bytes of the rows that are sorted at once, 12 a token
ALL = tl.constexpr(0x7F7FFFFF)  # bits of the greatest finite -z: what a row without filters keeps
NO_ID = tl.constexpr(0x7FFFFFFF)
UNIT = tl.constexpr(1099511627776.0)  # 2^40


@triton.jit
def scaled(b_x, top, inverse):
    """The scaled logit z = (logit - max) / temperature <= 0, and the bits of -z, which ascend as z descends."""
    z = (b_x - top) * inverse
    return z, (-z).to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def inverse_temperature(t):
    return tl.minimum(tl.div_rn(1.0, tl.where(t == 0.0, 1.0, t)), 3.4028234663852886e38)


@triton.jit
def row_stats_kernel(logits, stats, vocab, logits_row, chunks, CHUNK: tl.constexpr):
    """The maximum of a chunk, NaN where an element is NaN or +inf, and the sum of exp(logit - maximum)."""
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    o_v = chunk * CHUNK + tl.arange(0, CHUNK)
    b_x = tl.load(logits + row * logits_row + o_v, mask=o_v < vocab, other=float("-inf"))
    bad = tl.max(((b_x != b_x) | (b_x == float("inf"))).to(tl.int32), 0)
    top = tl.max(tl.where(b_x == b_x, b_x, float("-inf")), 0)
    total = tl.sum(tl.exp(b_x - tl.where(top == float("-inf"), 0.0, top)), 0)
    p_stats = stats + (row * chunks + chunk) * 2
    tl.store(p_stats, tl.where(bad > 0, float("nan"), top))
    tl.store(p_stats + 1, total)


@triton.jit
def load_top(stats, row, chunks, CHUNKS: tl.constexpr):
    """The maximum of a row, NaN where that of a chunk is."""
    o_c = tl.arange(0, CHUNKS)
    tops = tl.load(stats + (row * chunks + o_c) * 2, mask=o_c < chunks, other=float("-inf"))
    top = tl.max(tl.where(tops == tops, tops, float("-inf")), 0)
    return tl.where(tl.max((tops != tops).to(tl.int32), 0) > 0, float("nan"), top)


@triton.jit
def mass_of(bits):
    return (tl.exp(-(bits.to(tl.float32, bitcast=True))) * UNIT).to(tl.int64)


@triton.jit(do_not_specialize=["first"])
def sort_kernel(
    logits, stats, temperature, top_k, top_p, entries, sorted_bits, masses, first, vocab, logits_row, chunks, blocks,
    ENTRIES: tl.constexpr, CHUNKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The bits of a block in ascending order, and for top-p the mass of those up to each."""
    place, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = first + place
    entry = row
    if ENTRIES:
        entry = tl.load(entries + row).to(tl.int64)
    t, k, p = tl.load(temperature + entry), tl.load(top_k + entry), tl.load(top_p + entry)
    if (t > 0.0) & (((k > 0) & (k < vocab)) | (p < 1.0)):
        top = load_top(stats, row, chunks, CHUNKS)
        o_i = tl.arange(0, BLOCK)
        o_v = block * BLOCK + o_i
        b_x = tl.load(logits + row * logits_row + o_v, mask=o_v < vocab, other=float("-inf"))
        bits = tl.sort(scaled(b_x, top, inverse_temperature(t))[1])
        o_out = (place * blocks + block) * BLOCK + o_i
        tl.store(sorted_bits + o_out, bits)
        if p < 1.0:
            tl.store(masses + o_out, tl.cumsum(mass_of(bits), 0))


@triton.jit
def find(p_bits, u, low, high, BLOCK: tl.constexpr):
    """How many tokens of each block have bits of at most u [W], known to be low to high [BLOCKS]: int32 [BLOCKS, W]."""
    o_b = tl.arange(0, low.shape[0])[:, None] * BLOCK
    low, high = low[:, None] + u[None, :] * 0, high[:, None] + u[None, :] * 0
    left = u.shape[0] * 0 + BLOCK
    while left > 0:  # log2(BLOCK) + 1 rounds
        middle = (low + high) // 2
        open_ = low < high
        below = tl.load(p_bits + o_b + middle, mask=open_, other=0) <= u[None, :]
        low = tl.where(open_ & below, middle + 1, low)
        high = tl.where(open_ & (below == 0), middle, high)
        left = left // 2
    return low


@triton.jit
def weigh(p_masses, counts, MASS: tl.constexpr, BLOCK: tl.constexpr):
    """The weight of the first tokens of all blocks, as many as counts [BLOCKS, W] says: int64 [W]."""
    if MASS:
        o_b = tl.arange(0, counts.shape[0])[:, None] * BLOCK
        return tl.sum(tl.load(p_masses + o_b + counts - 1, mask=counts > 0, other=0), 0)
    else:
        return tl.sum(counts.to(tl.int64), 0)


@triton.jit
def descend(p_bits, p_masses, sizes, need, cut_u, MASS: tl.constexpr, BLOCK: tl.constexpr):
    """The least bits, at most cut_u, up to which all tokens weigh `need` (float64), and the weight of those before."""
    u, before = cut_u * 0, need.to(tl.int64) * 0
    low, high = sizes * 0, sizes
    o_w = tl.arange(0, 16)
    for digit in range(0, 8):
        shift = 28 - 4 * digit
        ends = tl.minimum(u.to(tl.int64) + ((o_w.to(tl.int64) + 1) << shift) - 1, ALL).to(tl.int32)
        counts = find(p_bits, ends, low, high, BLOCK)
        weights = weigh(p_masses, counts, MASS, BLOCK)
        enough = (weights.to(tl.float64) >= need) | (ends >= cut_u)
        u += (16 - tl.sum(enough.to(tl.int32), 0)) << shift
        before = tl.maximum(before, tl.max(tl.where(enough, 0, weights), 0))
        low = tl.maximum(low, tl.max(tl.where(enough[None, :], 0, counts), 1))
        high = tl.minimum(high, tl.min(tl.where(enough[None, :], counts, BLOCK), 1))
    return u, before


@triton.jit
def nth_of_equals(p_bits, p_x, sizes, vocab, top, inverse, u, n, BLOCK: tl.constexpr):
    """The id of the n-th token, counted from 1, with these bits."""
    o_w, o_b, o_i = tl.arange(0, 2), tl.arange(0, sizes.shape[0]), tl.arange(0, BLOCK)
    counts = find(p_bits, o_w + u - 1, sizes * 0, sizes, BLOCK)
    equals = tl.sum(tl.where(o_w[None, :] == 1, counts, -counts), 1).to(tl.int64)
    block = tl.min(tl.where(tl.cumsum(equals, 0) >= n, o_b, sizes.shape[0]), 0)
    n -= tl.sum(tl.where(o_b < block, equals, 0), 0)
    o_v = block * BLOCK + o_i
    bits = scaled(tl.load(p_x + o_v, mask=o_v < vocab, other=float("-inf")), top, inverse)[1]
    equal = (bits == u) & (o_v < vocab)
    return tl.min(tl.where(equal & (tl.cumsum(equal.to(tl.int64), 0) == n), o_v, NO_ID), 0)


@triton.jit(do_not_specialize=["first"])
def cuts_kernel(
    logits, stats, temperature, top_k, top_p, min_p, entries, sorted_bits, masses, cuts, first, vocab, logits_row,
    chunks, blocks,
    ENTRIES: tl.constexpr, CHUNKS: tl.constexpr, BLOCKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The cuts int32 [rows, 2]: a token survives with bits below the first, or equal and its id at most the second."""
    place = tl.program_id(0).to(tl.int64)
    row = first + place
    entry = row
    if ENTRIES:
        entry = tl.load(entries + row).to(tl.int64)
    top, t = load_top(stats, row, chunks, CHUNKS), tl.load(temperature + entry)
    k, p, least = tl.load(top_k + entry), tl.load(top_p + entry), tl.load(min_p + entry)
    cut_u, cut_id = k * 0 + ALL, k * 0 + NO_ID
    if (t > 0.0) & (top > float("-inf")):
        inverse, p_x = inverse_temperature(t), logits + row * logits_row
        p_bits, p_masses = sorted_bits + place * blocks * BLOCK, masses + place * blocks * BLOCK
        sizes = tl.where(tl.arange(0, BLOCKS) < blocks, BLOCK, 0)
        n = tl.cast(vocab, tl.int64)  # how many of the tokens with bits of cut_u survive, lowest ids first
        if (k > 0) & (k < vocab):
            counts = find(p_bits, tl.arange(0, 1) + cut_u, sizes * 0, sizes, BLOCK)
            if tl.sum(weigh(p_masses, counts, False, BLOCK), 0) > k:
                cut_u, before = descend(p_bits, p_masses, sizes, k.to(tl.float64), cut_u, False, BLOCK)
                n = k - before
        if p < 1.0:
            counts = find(p_bits, tl.arange(0, 1) + cut_u - 1, sizes * 0, sizes, BLOCK)
            mass = tl.sum(weigh(p_masses, counts, True, BLOCK), 0) + mass_of(cut_u) * n
            need = p.to(tl.float64) * mass.to(tl.float64)
            cut_u, before = descend(p_bits, p_masses, sizes, need, cut_u, True, BLOCK)
            each = tl.maximum(mass_of(cut_u), 1).to(tl.float64)
            n = tl.maximum(tl.ceil((need - before.to(tl.float64)) / each), 1.0).to(tl.int64)
        if cut_u < ALL:
            cut_id = nth_of_equals(p_bits, p_x, sizes, vocab, top, inverse, cut_u, n, BLOCK)
        if least > 0.0:
            u = (-tl.minimum(tl.log(least), 0.0)).to(tl.int32, bitcast=True) & 0x7FFFFFFF
            cut_id = tl.where(u < cut_u, NO_ID, cut_id)
            cut_u = tl.minimum(u, cut_u)
    tl.store(cuts + row * 2, cut_u)
    tl.store(cuts + row * 2 + 1, cut_id)


def open_rows(logits, temperature, top_k, top_p, min_p, entries):
    """The statistics float32 [rows, chunks, 2] and cuts int32 [rows, 2] of all rows, and the sizes of a launch."""
    check_dtypes(torch.float32, temperature=temperature, top_p=top_p, min_p=min_p)
    check_dtypes(torch.int32, top_k=top_k)
    if logits.dtype != torch.float32 or logits.dim() != 2 or logits.stride(1) != 1:
        raise ValueError(f"logits: got {logits.dtype} with strides {logits.stride()}, wanted float32, contiguous rows")
    (rows, vocab), device = logits.shape, logits.device
    whole = max(128, triton.next_power_of_2(vocab))
    chunk, block = min(CHUNK, whole), min(BLOCK, whole)
    chunks, blocks = triton.cdiv(vocab, chunk), triton.cdiv(vocab, block)
    stats = torch.empty((rows, chunks, 2), dtype=torch.float32, device=device)
    cuts = torch.empty((rows, 2), dtype=torch.int32, device=device)
    size = {"CHUNKS": triton.next_power_of_2(chunks), "CHUNK": chunk}
    at_once = max(1, min(rows, SCRATCH // (12 * blocks * block)))
    if rows:
        row_stats_kernel[rows, chunks](
            logits, stats, vocab, logits.stride(0), chunks, CHUNK=chunk, num_warps=8, enable_fp_fusion=False
        )
        sorted_bits = torch.empty((at_once, blocks, block), dtype=torch.int32, device=device)
        masses = torch.empty(sorted_bits.shape, dtype=torch.int64, device=device)
    flags = {"ENTRIES": entries is not None, "CHUNKS": size["CHUNKS"], "BLOCK": block, "enable_fp_fusion": False}
    for first in range(0, rows, at_once):
        some = min(at_once, rows - first)
        sort_kernel[some, blocks](
            logits, stats, temperature, top_k, top_p, entries, sorted_bits, masses, first, vocab, logits.stride(0),
            chunks, blocks, **flags, num_warps=4,
        )  # fmt: skip
        cuts_kernel[(some,)](
            logits, stats, temperature, top_k, top_p, min_p, entries, sorted_bits, masses, cuts, first, vocab,
            logits.stride(0), chunks, blocks, BLOCKS=triton.next_power_of_2(blocks), **flags, num_warps=8,
        )  # fmt: skip
    return stats, cuts, chunks, size
