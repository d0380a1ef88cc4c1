"""Coupled sampling in Triton: the statistics and filters of a row (triton_filters), the scores in chunks, the answer.

Integers equal the reference's. Nothing waits for the device: a row with NaN, +inf or nothing but -inf gets token -1
and log-probability NaN, where the CPU form raises.
"""

import torch
import triton
import triton.language as tl

from ..check import check_dtypes
from .triton_filters import NO_ID, inverse_temperature, load_top, open_rows, scaled


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
def noise_words_kernel(seeds, positions, out, ids, purpose, CHUNK: tl.constexpr):
    row, first = tl.program_id(0), tl.program_id(1) * CHUNK
    words = noise_of_block(tl.load(seeds + row), tl.load(positions + row), purpose, first, CHUNK)
    o_v = first + tl.arange(0, CHUNK)
    tl.store(out + row.to(tl.int64) * ids + o_v, words.to(tl.int64), mask=o_v < ids)


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
        noise_words_kernel[seeds.shape[0], triton.cdiv(ids, 1024)](
            seeds, positions, out, ids, purpose, CHUNK=1024, enable_fp_fusion=False
        )
    return out
