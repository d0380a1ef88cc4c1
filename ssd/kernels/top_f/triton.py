"""The F best tokens of a row: F rounds of maximum and lowest index in each chunk, then among the chunks' best.

Rows without a finite logit, or with NaN or +inf, give ids -1: nothing waits for the device.
"""

import torch
import triton
import triton.language as tl

from ..check import check_dtypes
from ..sample.triton import NO_ID, load_top, open_rows, score_chunk


@triton.jit
def take_best(score, inside, index):
    """The best of the survivors, else of the others: its index (NO_ID: none left), score, and whether it survives."""
    among = tl.where(inside, score, float("-inf"))
    survives = tl.max(among, 0) > float("-inf")
    among = tl.where(index * 0 + survives.to(tl.int32) > 0, among, score)
    best = tl.max(among, 0)
    return tl.min(tl.where((among == best) & (among > float("-inf")), index, NO_ID), 0), best, survives


@triton.jit
def top_f_kernel(
    logits, stats, cuts, temperature, seeds, positions, exclude, target_ids, best_score, best_index, vocab, logits_row,
    chunks, excluded, purpose,
    F: tl.constexpr, IDS: tl.constexpr, EXCLUDE: tl.constexpr, CHUNKS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """The F candidates of a chunk: the index of a survivor, -2 - index of another token, -1 for none."""
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
    p_out = (row * chunks + chunk) * F
    for f in range(0, F):
        index, best, survives = take_best(score, inside, o_v)
        tl.store(best_score + p_out + f, best)
        tl.store(best_index + p_out + f, tl.where(index == NO_ID, -1, tl.where(survives, index, -2 - index)))
        score = tl.where(o_v == index, float("-inf"), score)


@triton.jit
def top_f_merge_kernel(
    stats, temperature, target_ids, best_score, best_index, ids, scores, chunks,
    F: tl.constexpr, IDS: tl.constexpr, CHUNKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, o_c = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    m_c = o_c < chunks * F
    top, t = load_top(stats, row, chunks, CHUNKS), tl.load(temperature + row)
    stored = tl.load(best_index + row * chunks * F + o_c, mask=m_c, other=-1)
    score = tl.load(best_score + row * chunks * F + o_c, mask=m_c, other=float("-inf"))
    score = tl.where((stored != -1) & (o_c * 0 + top > float("-inf")), score, float("-inf"))
    inside = stored >= 0
    index = tl.where(inside, stored, -2 - stored)
    for f in range(0, F):
        found, best, survives = take_best(score, inside, index)
        token = found.to(tl.int64)
        if IDS:
            token = tl.load(target_ids + found, mask=found != NO_ID, other=-1)
        tl.store(ids + row * F + f, tl.where(found == NO_ID, -1, token))
        tl.store(scores + row * F + f, tl.where(t > 0.0, best, best - top))
        score = tl.where((index == found) & (stored != -1), float("-inf"), score)


def top_f(logits, temperature, top_k, top_p, min_p, seeds, positions, f, exclude=None, target_ids=None, purpose=0):
    (rows, vocab), device = logits.shape, logits.device
    check_dtypes(torch.int64, seeds=seeds, positions=positions, exclude=exclude, target_ids=target_ids)
    if exclude is not None and not (exclude.is_contiguous() and exclude.shape[0] == rows):
        raise ValueError(f"exclude: got shape {tuple(exclude.shape)}, wanted contiguous [{rows}, any]")
    stats, cuts, chunks, size = open_rows(logits, temperature, top_k, top_p, min_p, None)
    ids = torch.empty((rows, f), dtype=torch.int64, device=device)
    scores = torch.empty((rows, f), dtype=torch.float32, device=device)
    if rows:
        best_score = torch.empty((rows, chunks, f), dtype=torch.float32, device=device)
        best_index = torch.empty((rows, chunks, f), dtype=torch.int32, device=device)
        top_f_kernel[rows, chunks](
            logits, stats, cuts, temperature, seeds, positions, exclude, target_ids, best_score, best_index, vocab,
            logits.stride(0), chunks, 0 if exclude is None else exclude.shape[1], purpose, F=f,
            IDS=target_ids is not None, EXCLUDE=exclude is not None, **size, num_warps=8, enable_fp_fusion=False,
        )  # fmt: skip
        top_f_merge_kernel[(rows,)](
            stats, temperature, target_ids, best_score, best_index, ids, scores, chunks, F=f,
            IDS=target_ids is not None, CHUNKS=size["CHUNKS"], BLOCK=triton.next_power_of_2(chunks * f),
            num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
    return ids, scores
