"""The F best tokens of a row: the best of each chunk, then the best of those.

A token is one int64 that ascends with its rank: survivors above others, then by score, lower indices above higher. So a
round of selection is one maximum. Rows without a finite logit, or with NaN or +inf, give ids -1: nothing waits for the
device.
"""

import torch
import triton
import triton.language as tl

from ..check import check_dtypes
from ..sample.triton import score_chunk
from ..sample.triton_filters import NO_ID, load_top, open_rows

NONE = tl.constexpr(-(2**63))


@triton.jit
def to_key(score, inside, index):
    bits = tl.where(score == 0.0, 0.0, score).to(tl.int32, bitcast=True)  # -0 is 0
    rising = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64) + 0x80000000  # from 0, in the order of scores
    key = (rising << 31) + (index ^ NO_ID)
    return tl.where(score > float("-inf"), tl.where(inside, key, key + NONE), NONE)


@triton.jit
def from_key(key):
    """The score and index of a token."""
    key = tl.where(key < 0, key - NONE, key)
    rising = ((key >> 31) - 0x80000000).to(tl.int32)
    score = (rising ^ ((rising >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    return score, (key & NO_ID).to(tl.int32) ^ NO_ID


@triton.jit
def top_f_kernel(
    logits, stats, cuts, temperature, seeds, positions, exclude, target_ids, best, vocab, logits_row, chunks, excluded,
    purpose,
    F: tl.constexpr, IDS: tl.constexpr, EXCLUDE: tl.constexpr, CHUNKS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """The keys of the F best of a chunk, NONE where tokens run out."""
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    top, t = load_top(stats, row, chunks, CHUNKS), tl.load(temperature + row)
    o_v = chunk * CHUNK + tl.arange(0, CHUNK)
    m_v = o_v < vocab
    score, inside = score_chunk(
        logits + row * logits_row, target_ids, o_v, m_v, vocab, top, t, tl.load(seeds + row), tl.load(positions + row),
        purpose, tl.load(cuts + row * 2), tl.load(cuts + row * 2 + 1), IDS, CHUNK,
    )  # fmt: skip
    ids = o_v.to(tl.int64)
    if IDS:
        ids = tl.load(target_ids + o_v, mask=m_v, other=-1)
    if EXCLUDE:  # a loop of no rounds would be compiled all the same
        for e in range(0, excluded):
            score = tl.where(ids == tl.load(exclude + row * excluded + e), float("-inf"), score)
    keys = to_key(score, inside, o_v)
    p_out = best + (row * chunks + chunk) * F
    for f in range(0, F):
        most = tl.max(keys, 0)
        tl.store(p_out + f, most)
        keys = tl.where(keys == most, NONE, keys)


@triton.jit
def top_f_merge_kernel(
    stats, temperature, target_ids, best, ids, scores, chunks,
    F: tl.constexpr, IDS: tl.constexpr, CHUNKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, o_c = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    top, t = load_top(stats, row, chunks, CHUNKS), tl.load(temperature + row)
    m_c = (o_c < chunks * F) & (o_c * 0 + top > float("-inf"))
    keys = tl.load(best + row * chunks * F + o_c, mask=m_c, other=NONE)
    for f in range(0, F):
        most = tl.max(keys, 0)
        score, index = from_key(most)
        token = index.to(tl.int64)
        if IDS:
            token = tl.load(target_ids + index, mask=most != NONE, other=-1)
        tl.store(ids + row * F + f, tl.where(most == NONE, -1, token))
        score = tl.where(t > 0.0, score, score - top)
        tl.store(scores + row * F + f, tl.where(most == NONE, float("-inf"), score))
        keys = tl.where(keys == most, NONE, keys)


def top_f(logits, temperature, top_k, top_p, min_p, seeds, positions, f, exclude=None, target_ids=None, purpose=0):
    (rows, vocab), device = logits.shape, logits.device
    check_dtypes(torch.int64, seeds=seeds, positions=positions, exclude=exclude, target_ids=target_ids)
    if exclude is not None and not (exclude.is_contiguous() and exclude.shape[0] == rows):
        raise ValueError(f"exclude: got shape {tuple(exclude.shape)}, wanted contiguous [{rows}, any]")
    stats, cuts, chunks, size = open_rows(logits, temperature, top_k, top_p, min_p, None)
    ids = torch.empty((rows, f), dtype=torch.int64, device=device)
    scores = torch.empty((rows, f), dtype=torch.float32, device=device)
    if rows:
        best = torch.empty((rows, chunks, f), dtype=torch.int64, device=device)
        top_f_kernel[rows, chunks](
            logits, stats, cuts, temperature, seeds, positions, exclude, target_ids, best, vocab,
            logits.stride(0), chunks, 0 if exclude is None else exclude.shape[1], purpose, F=f,
            IDS=target_ids is not None, EXCLUDE=exclude is not None, **size, num_warps=8, enable_fp_fusion=False,
        )  # fmt: skip
        top_f_merge_kernel[(rows,)](
            stats, temperature, target_ids, best, ids, scores, chunks, F=f,
            IDS=target_ids is not None, CHUNKS=size["CHUNKS"], BLOCK=triton.next_power_of_2(chunks * f),
            num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
    return ids, scores
