"""Coupled sampling in Triton: the statistics of a row in chunks, its filters, the scores in chunks, the answer.

Integers equal the reference's. A sum of probabilities is one of integers (exp z in units of 2^-40), so it has the
same value in any order. The filters bisect the 31 bits of -z, which ascend as z descends: no sort, and a row's cut
depends on that row alone. Nothing waits for the device: a row with NaN, +inf or nothing but -inf gets token -1
and log-probability NaN, where the CPU form raises.
"""

import torch
import triton
import triton.language as tl

from ..check import check_dtypes

CHUNK = 4096
ALL = tl.constexpr(0x7F7FFFFF)  # bits of the greatest finite -z: what a row without filters keeps
NO_ID = tl.constexpr(0x7FFFFFFF)


@triton.jit
def philox(c0, c1, c2, k0, k1):
    """Philox4x32-10 of the counter (c0, c1, c2, 0), as four uint32 of the shape of c1."""
    c0, c2, c3 = c1 * 0 + c0, c1 * 0 + c2, c1 * 0
    for _ in tl.static_range(10):
        m0, m1 = tl.full([1], 0xD2511F53, tl.uint32), tl.full([1], 0xCD9E8D57, tl.uint32)
        h0, h1 = tl.umulhi(c0, m0 + c0 * 0), tl.umulhi(c2, m1 + c2 * 0)
        c0, c1, c2, c3 = h1 ^ c1 ^ k0, c2 * m1, h0 ^ c3 ^ k1, c0 * m0
        k0, k1 = k0 + tl.full([1], 0x9E3779B9, tl.uint32), k1 + tl.full([1], 0xBB67AE85, tl.uint32)
    return c0, c1, c2, c3


@triton.jit
def noise_of_block(seed, position, purpose, first, CHUNK: tl.constexpr):
    """The words of ids first to first + CHUNK - 1, first a multiple of 4: uint32 [CHUNK]."""
    zero = tl.zeros([CHUNK // 4], tl.int64)
    block = (zero + first // 4 + tl.arange(0, CHUNK // 4)).to(tl.uint32)
    k0, k1 = (zero + seed).to(tl.uint32), ((zero + seed) >> 32).to(tl.uint32)
    c0, c1, c2, c3 = philox((zero + position).to(tl.uint32), block, (zero + purpose).to(tl.uint32), k0, k1)
    return tl.interleave(tl.interleave(c0, c2), tl.interleave(c1, c3))


@triton.jit
def noise_of_ids(seed, position, purpose, ids):
    """The words of any ids int64 [CHUNK]."""
    zero = ids * 0
    k0, k1 = (zero + seed).to(tl.uint32), ((zero + seed) >> 32).to(tl.uint32)
    c0, c1, c2, c3 = philox(
        (zero + position).to(tl.uint32), (ids // 4).to(tl.uint32), (zero + purpose).to(tl.uint32), k0, k1
    )
    return tl.where(ids % 4 == 0, c0, tl.where(ids % 4 == 1, c1, tl.where(ids % 4 == 2, c2, c3)))


@triton.jit
def log_exponential(word):
    """The logarithm of E = -log1p(-w), by log1p(-w) = log(u) * -w / (u - 1) with u = 1 - w rounded (Kahan)."""
    w = tl.minimum((word.to(tl.float32) + 0.5) * 2.3283064365386963e-10, 0.999999940395355224609375)
    u = 1.0 - w
    log1p = tl.where(u == 1.0, -w, tl.div_rn(tl.log(u) * -w, tl.where(u == 1.0, -1.0, u - 1.0)))
    return tl.log(-log1p)


@triton.jit
def scaled(b_x, top, inverse):
    """The scaled logit z = (logit - max) / temperature <= 0, and the bits of -z, which ascend as z descends."""
    z = (b_x - top) * inverse
    return z, (-z).to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def inverse_temperature(t):
    return tl.minimum(tl.div_rn(1.0, tl.where(t == 0.0, 1.0, t)), 3.4028234663852886e38)


@triton.jit
def noise_words_kernel(seeds, positions, out, ids, purpose, CHUNK: tl.constexpr):
    row, first = tl.program_id(0), tl.program_id(1) * CHUNK
    words = noise_of_block(tl.load(seeds + row), tl.load(positions + row), purpose, first, CHUNK)
    o_v = first + tl.arange(0, CHUNK)
    tl.store(out + row.to(tl.int64) * ids + o_v, words.to(tl.int64), mask=o_v < ids)


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
def weight_up_to(p_x, vocab, top, inverse, u, cut_u, cut_id, MASS: tl.constexpr, CHUNK: tl.constexpr):
    """The weight of survivors of (cut_u, cut_id) with bits of at most u; a token weighs 1, or exp z with MASS."""
    total = tl.zeros([CHUNK], tl.int64)
    for first in range(0, vocab, CHUNK):
        o_v = first + tl.arange(0, CHUNK)
        z, bits = scaled(tl.load(p_x + o_v, mask=o_v < vocab, other=float("-inf")), top, inverse)
        keep = (bits <= u) & ((bits < cut_u) | ((bits == cut_u) & (o_v <= cut_id)))
        if MASS:
            total += tl.where(keep, tl.exp(z) * 1099511627776.0, 0.0).to(tl.int64)
        else:
            total += keep.to(tl.int64)
    return tl.sum(total, 0)


@triton.jit
def nth_of_equals(p_x, vocab, top, inverse, u, n, CHUNK: tl.constexpr):
    """The id of the n-th token, counted from 1, with these bits."""
    found, seen = vocab - 1 + n.to(tl.int32) * 0, n * 0
    for first in range(0, vocab, CHUNK):
        o_v = first + tl.arange(0, CHUNK)
        _, bits = scaled(tl.load(p_x + o_v, mask=o_v < vocab, other=float("-inf")), top, inverse)
        equal = (bits == u).to(tl.int64)
        nth = (equal > 0) & (tl.cumsum(equal, 0) + seen == n)
        found = tl.minimum(found, tl.min(tl.where(nth, o_v, vocab), 0))
        seen += tl.sum(equal, 0)
    return found


@triton.jit
def tighten(p_x, vocab, top, inverse, need, cut_u, cut_id, MASS: tl.constexpr, CHUNK: tl.constexpr):
    """The fewest best survivors that weigh at least `need` (float64)."""
    low = cut_u * 0 - 1  # bits that fall short
    high = cut_u
    for _ in range(0, 31):
        middle = low + (high - low) // 2
        enough = weight_up_to(p_x, vocab, top, inverse, middle, cut_u, cut_id, MASS, CHUNK).to(tl.float64) >= need
        high = tl.where(enough, middle, high)
        low = tl.where(enough, low, tl.minimum(middle, high - 1))
    before = weight_up_to(p_x, vocab, top, inverse, high - 1, cut_u, cut_id, MASS, CHUNK).to(tl.float64)
    each = need * 0.0 + 1.0
    if MASS:
        z = -(high.to(tl.float32, bitcast=True))
        each = tl.maximum((tl.exp(z) * 1099511627776.0).to(tl.int64).to(tl.float64), 1.0)
    n = tl.maximum(tl.ceil((need - before) / each), 1.0).to(tl.int64)
    last = nth_of_equals(p_x, vocab, top, inverse, high, n, CHUNK)
    return high, tl.where(high == cut_u, tl.minimum(last, cut_id), last)


@triton.jit
def filter_kernel(
    logits, stats, temperature, top_k, top_p, min_p, entries, cuts, vocab, logits_row, chunks,
    ENTRIES: tl.constexpr, CHUNKS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """The cuts int32 [rows, 2]: a token survives with bits below the first, or equal and its id at most the second."""
    row = tl.program_id(0).to(tl.int64)
    entry = row
    if ENTRIES:
        entry = tl.load(entries + row).to(tl.int64)
    top, t = load_top(stats, row, chunks, CHUNKS), tl.load(temperature + entry)
    k, p, least = tl.load(top_k + entry), tl.load(top_p + entry), tl.load(min_p + entry)
    cut_u, cut_id = k * 0 + ALL, k * 0 + NO_ID
    if (t > 0.0) & (top > float("-inf")):
        inverse, p_x = inverse_temperature(t), logits + row * logits_row
        if (k > 0) & (k < vocab):
            count = weight_up_to(p_x, vocab, top, inverse, cut_u, cut_u, cut_id, False, CHUNK)
            if count > k:
                cut_u, cut_id = tighten(p_x, vocab, top, inverse, k.to(tl.float64), cut_u, cut_id, False, CHUNK)
        if p < 1.0:
            mass = weight_up_to(p_x, vocab, top, inverse, cut_u, cut_u, cut_id, True, CHUNK).to(tl.float64)
            cut_u, cut_id = tighten(p_x, vocab, top, inverse, p.to(tl.float64) * mass, cut_u, cut_id, True, CHUNK)
        if least > 0.0:
            u = (-tl.minimum(tl.log(least), 0.0)).to(tl.int32, bitcast=True) & 0x7FFFFFFF
            cut_id = tl.where(u < cut_u, NO_ID, cut_id)
            cut_u = tl.minimum(u, cut_u)
    tl.store(cuts + row * 2, cut_u)
    tl.store(cuts + row * 2 + 1, cut_id)


@triton.jit
def score_chunk(
    p_x, p_ids, o_v, m_v, vocab, top, t, seed, position, purpose, cut_u, cut_id, IDS: tl.constexpr, CHUNK: tl.constexpr
):
    """The scores of a chunk, at temperature 0 its logits, and whether each token survives. -inf is never drawn."""
    b_x = tl.load(p_x + o_v, mask=m_v, other=float("-inf"))
    z, bits = scaled(b_x, top, inverse_temperature(t))
    inside = (bits < cut_u) | ((bits == cut_u) & (o_v <= cut_id))
    if IDS:
        words = noise_of_ids(seed, position, purpose, tl.load(p_ids + o_v, mask=m_v, other=0))
    else:
        words = noise_of_block(seed, position, purpose, tl.min(o_v, 0), CHUNK)
    score = tl.where(o_v * 0 + t > 0.0, z - log_exponential(words), b_x)
    return tl.where(b_x == float("-inf"), float("-inf"), score), inside | (o_v * 0 + t == 0.0)


@triton.jit
def score_kernel(
    logits, stats, cuts, temperature, seeds, positions, entries, depths, best_score, best_id, vocab, logits_row, chunks,
    ENTRIES: tl.constexpr, CHUNKS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """The greatest score of a survivor in a chunk, and its lowest id."""
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    entry, depth = row, row * 0
    if ENTRIES:
        entry, depth = tl.load(entries + row).to(tl.int64), tl.load(depths + row).to(tl.int64)
    top, t = load_top(stats, row, chunks, CHUNKS), tl.load(temperature + entry)
    cut_u, cut_id = tl.load(cuts + row * 2), tl.load(cuts + row * 2 + 1)
    o_v = chunk * CHUNK + tl.arange(0, CHUNK)
    score, inside = score_chunk(
        logits + row * logits_row, cuts, o_v, o_v < vocab, vocab, top, t, tl.load(seeds + entry),
        tl.load(positions + entry) + depth, 0, cut_u, cut_id, False, CHUNK,
    )  # fmt: skip
    score = tl.where(inside, score, float("-inf"))
    best = tl.max(score, 0)
    tl.store(best_score + row * chunks + chunk, best)
    tl.store(best_id + row * chunks + chunk, tl.min(tl.where(score == best, o_v, NO_ID), 0))


@triton.jit
def pick_kernel(
    logits, stats, best_score, best_id, tokens, logprobs, logits_row, chunks,
    CHUNKS: tl.constexpr, LOGPROBS: tl.constexpr,
):  # fmt: skip
    row, o_c = tl.program_id(0).to(tl.int64), tl.arange(0, CHUNKS)
    m_c = o_c < chunks
    top = load_top(stats, row, chunks, CHUNKS)
    score = tl.load(best_score + row * chunks + o_c, mask=m_c, other=float("-inf"))
    ids = tl.load(best_id + row * chunks + o_c, mask=m_c, other=NO_ID)
    token = tl.min(tl.where(score == tl.max(score, 0), ids, NO_ID), 0)
    token = tl.where(top > float("-inf"), token, -1)
    tl.store(tokens + row, token.to(tl.int64))
    if LOGPROBS:
        tops = tl.load(stats + (row * chunks + o_c) * 2, mask=m_c, other=float("-inf"))
        sums = tl.load(stats + (row * chunks + o_c) * 2 + 1, mask=m_c, other=0.0)
        x = tl.load(logits + row * logits_row + token, mask=token >= 0, other=float("nan"))
        total = tl.sum(tl.where(sums > 0.0, tl.exp(tops - top) * sums, 0.0), 0)
        tl.store(logprobs + row, x - top - tl.log(total))


def open_rows(logits, temperature, top_k, top_p, min_p, entries):
    """The statistics float32 [rows, chunks, 2] and cuts int32 [rows, 2] of all rows, and the sizes of a launch."""
    check_dtypes(torch.float32, temperature=temperature, top_p=top_p, min_p=min_p)
    check_dtypes(torch.int32, top_k=top_k)
    if logits.dtype != torch.float32 or logits.dim() != 2 or logits.stride(1) != 1:
        raise ValueError(f"logits: got {logits.dtype} with strides {logits.stride()}, wanted float32, contiguous rows")
    rows, vocab = logits.shape
    chunk = min(CHUNK, max(128, triton.next_power_of_2(vocab)))
    chunks = triton.cdiv(vocab, chunk)
    stats = torch.empty((rows, chunks, 2), dtype=torch.float32, device=logits.device)
    cuts = torch.empty((rows, 2), dtype=torch.int32, device=logits.device)
    size = {"CHUNKS": triton.next_power_of_2(chunks), "CHUNK": chunk}
    if rows:
        row_stats_kernel[rows, chunks](
            logits, stats, vocab, logits.stride(0), chunks, CHUNK=chunk, num_warps=8, enable_fp_fusion=False
        )
        filter_kernel[(rows,)](
            logits, stats, temperature, top_k, top_p, min_p, entries, cuts, vocab, logits.stride(0), chunks,
            ENTRIES=entries is not None, **size, num_warps=16, maxnreg=128, enable_fp_fusion=False,
        )  # fmt: skip
    return stats, cuts, chunks, size


def draw(logits, temperature, top_k, top_p, min_p, seeds, positions, logprobs, entries=None, depths=None):
    """The results of `sample`. entries, depths: int32 [rows], the parameters of a row and how many positions on."""
    check_dtypes(torch.int64, seeds=seeds, positions=positions)
    (rows, vocab), device = logits.shape, logits.device
    stats, cuts, chunks, size = open_rows(logits, temperature, top_k, top_p, min_p, entries)
    tokens = torch.empty(rows, dtype=torch.int64, device=device)
    values = torch.empty(rows if logprobs else 0, dtype=torch.float32, device=device)
    if rows:
        score = torch.empty((rows, chunks), dtype=torch.float32, device=device)
        ids = torch.empty((rows, chunks), dtype=torch.int32, device=device)
        score_kernel[rows, chunks](
            logits, stats, cuts, temperature, seeds, positions, entries, depths, score, ids, vocab, logits.stride(0),
            chunks, ENTRIES=entries is not None, **size, num_warps=8, enable_fp_fusion=False,
        )  # fmt: skip
        pick_kernel[(rows,)](
            logits, stats, score, ids, tokens, values, logits.stride(0), chunks, CHUNKS=size["CHUNKS"],
            LOGPROBS=logprobs, num_warps=1, enable_fp_fusion=False,
        )  # fmt: skip
    return tokens, values


def sample(logits, temperature, top_k, top_p, min_p, seeds, positions, logprobs=True):
    return draw(logits, temperature, top_k, top_p, min_p, seeds, positions, logprobs)


def noise_words(seeds, positions, ids, purpose=0):
    out = torch.empty((seeds.shape[0], ids), dtype=torch.int64, device=seeds.device)
    if out.numel():
        noise_words_kernel[seeds.shape[0], triton.cdiv(ids, 1024)](seeds, positions, out, ids, purpose, CHUNK=1024)
    return out
