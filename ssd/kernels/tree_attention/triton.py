"""Tree attention in Triton: split by position, G * T rows packed into M, an ordered merge, nothing atomic.

Work. The prefix is cut at fixed positions into spans of SPAN keys. A program reduces one span for one KV head and one
tile of BM packed rows (row t, query head g of the group: m = t * G + g, for any G), TILE keys at a time, and writes
(accumulator, maximum, sum); the second kernel folds a row's spans in ascending order. With so many rows that they fill
the device (prefill), and where there is one span, a program folds its spans itself: the same fold, the same bits.

Bits. A row reads its keys in order of position, the key of position j in column j mod TILE of tile j div TILE, whatever
the rows beside it and wherever the prefix ends; an invisible key adds an exact zero. What is left is how a column is
reduced: maxima are exact, products and sums are chains of one MMA shape (m16n8k16: BM is at most 32, because from 64 on
Triton takes other instructions) that no warp layout can reorder; so the sum of the weights is a product with ones and
not a reduction over threads. Multiply and add are never fused. So a row has the same bits at every number of rows.

Trees. Siblings have one position and would need one column. So a masked call reduces only whole spans of prefix for all
rows at once, unmasked; from the last whole span on, a program takes one row and gathers its path: the key of position
prefix_len + d is the d-th set bit of the row's mask (slots in topological order, the row's own depth = set bits - 1).
That is the computation of plain decoding, so branching trees also equal decoding bit for bit. It costs each row at most
SPAN - 1 keys of prefix and its own path; siblings are never read. With mask=None (slot = depth) all rows share columns
and stay packed to the end.
"""

import torch
import triton
import triton.language as tl

from ..check import check_dtypes

SPAN, TILE = 256, 64
FOLD_TILES = 264  # programs that fill a device: from here on a program folds its own spans


@triton.jit
def popcount(x):
    x = x - ((x >> 1) & 0x55555555)
    x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F
    return (x * 0x01010101) >> 24


@triton.jit
def count_bits(p_mask, WORDS: tl.constexpr, BLOCK: tl.constexpr):
    o_w = tl.arange(0, BLOCK)
    return tl.sum(popcount(tl.load(p_mask + o_w, mask=o_w < WORDS, other=0)), 0)


@triton.jit
def nth_set_bit(p_mask, n, WORDS: tl.constexpr):
    """The index of the n-th set bit, n int32 [TILE], among WORDS words of 32 bits."""
    word, slot, rank = n * 0, n * 0, n * 0
    for w in tl.static_range(WORDS):
        bits = tl.load(p_mask + w) + n * 0
        count = popcount(bits)
        here = (n >= 0) & (n < count)
        word, rank, slot = tl.where(here, bits, word), tl.where(here, n, rank), tl.where(here, 32 * w, slot)
        n -= count
    for i in tl.static_range(5):
        low = popcount(word & ((1 << (16 >> i)) - 1))
        up = rank >= low
        rank, slot = tl.where(up, rank - low, rank), tl.where(up, slot + (16 >> i), slot)
        word = tl.where(up, word >> (16 >> i), word)
    return slot


@triton.jit
def fold(m, den, acc, m2, den2, acc2):
    new = tl.maximum(m, m2)
    ref = tl.where(new == float("-inf"), 0.0, new)
    a, b = tl.exp2(m - ref), tl.exp2(m2 - ref)
    return new, den * a + den2 * b, acc * a[:, None] + acc2 * b[:, None]


@triton.jit
def is_finite(x):
    if x.dtype == tl.float32:
        return (x.to(tl.int32, bitcast=True) & 0x7F800000) != 0x7F800000
    elif x.dtype == tl.bfloat16:
        return (x.to(tl.int16, bitcast=True) & 0x7F80) != 0x7F80
    else:
        return (x.to(tl.int16, bitcast=True) & 0x7C00) != 0x7C00


@triton.jit
def fold_tile(
    b_q, b_k, b_v, visible, m, den, acc, scale, softcap,
    MASKED: tl.constexpr, SHARED: tl.constexpr, SOFTCAP: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    s = tl.dot(b_q, tl.trans(b_k), input_precision="ieee") * scale  # [BM, TILE], base 2
    if SOFTCAP:  # tanh(x) = 1 - 2 / (2^(2 x / ln 2) + 1); scale holds 2 / (ln 2 * softcap)
        s = softcap * (1 - 2 / (tl.exp2(s) + 1))
    if MASKED:
        s = tl.where(visible, s, float("-inf"))
    new = tl.maximum(m, tl.max(s, 1))
    ref = tl.where(new == float("-inf"), 0.0, new)
    alpha = tl.exp2(m - ref)[:, None]
    p = tl.exp2(s - ref[:, None]).to(b_v.dtype)
    counted = p
    if SHARED:  # a weight of 0 times a V that is not finite would be NaN: only the rows that see it get NaN, in den
        finite = is_finite(b_v)
        counted = tl.where(visible & (tl.min(finite.to(tl.int32), 1) == 0)[None, :], float("nan"), p).to(b_v.dtype)
        b_v = tl.where(finite, b_v, 0.0).to(b_v.dtype)
    den = tl.dot(counted, tl.full([TILE, 16], 1.0, b_v.dtype), den * alpha, input_precision="ieee")
    return new, den, tl.dot(p, b_v, acc * alpha, input_precision="ieee")


@triton.jit
def reduce_span(
    b_q, p_k, p_v, p_table, p_mask, span, prefix_len, end_full, end, end_row,
    k_page, k_slot, v_page, v_slot, scale, softcap,
    BM: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, PAGE: tl.constexpr, WORDS: tl.constexpr,
    SOFTCAP: tl.constexpr, SPAN: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    o_d = tl.arange(0, BD)[None, :]
    o_t = tl.arange(0, TILE)
    m = tl.full([BM], float("-inf"), tl.float32)
    den = tl.zeros([BM, 16], tl.float32)
    acc = tl.zeros([BM, BD], tl.float32)
    first = span * SPAN
    last = tl.minimum(first + SPAN, end)
    full = first + tl.maximum(tl.minimum(last, end_full) - first, 0) // TILE * TILE
    for start in range(first, full, TILE):
        j = start + o_t
        page, at = tl.load(p_table + j // PAGE).to(tl.int64), (j % PAGE).to(tl.int64)
        o_k = (page * k_page + at * k_slot)[:, None] + o_d  # [TILE, BD]
        o_v = (page * v_page + at * v_slot)[:, None] + o_d
        if D == BD:
            b_k, b_v = tl.load(p_k + o_k), tl.load(p_v + o_v)
        else:
            b_k, b_v = tl.load(p_k + o_k, mask=o_d < D, other=0.0), tl.load(p_v + o_v, mask=o_d < D, other=0.0)
        m, den, acc = fold_tile(b_q, b_k, b_v, 0, m, den, acc, scale, softcap, False, False, SOFTCAP, TILE)
    for start in range(full, last, TILE):
        j = start + o_t
        index = j
        if WORDS > 0:
            index = tl.where(j < prefix_len, j, prefix_len + nth_set_bit(p_mask, j - prefix_len, WORDS))
        page = tl.load(p_table + index // PAGE, mask=j < end, other=0).to(tl.int64)
        at = (index % PAGE).to(tl.int64)
        o_k = (page * k_page + at * k_slot)[:, None] + o_d
        o_v = (page * v_page + at * v_slot)[:, None] + o_d
        exists = (j < end)[:, None] & (o_d < D)
        b_k, b_v = tl.load(p_k + o_k, mask=exists, other=0.0), tl.load(p_v + o_v, mask=exists, other=0.0)
        visible = j[None, :] < end_row[:, None]
        m, den, acc = fold_tile(b_q, b_k, b_v, visible, m, den, acc, scale, softcap, True, WORDS == 0, SOFTCAP, TILE)
    return m, tl.max(den, 1), acc


@triton.jit
def store_result(p_out, p_lse, o_row, o_d, m_row, m_d, m, den, acc, D: tl.constexpr, LSE: tl.constexpr):
    """Store out = acc / den and lse = ln(2) (m + log2 den) at flat rows (row, head); 0 and -inf for no key."""
    y = tl.where(den[:, None] != 0, acc / tl.where(den != 0, den, 1.0)[:, None], 0.0)  # NaN stays NaN
    tl.store(p_out + o_row[:, None] * D + o_d, y.to(p_out.dtype.element_ty), mask=m_row[:, None] & m_d)
    lse = tl.where(den != 0, (m + tl.log2(tl.where(den != 0, den, 1.0))) * 0.6931471805599453, float("-inf"))
    if LSE:
        tl.store(p_lse + o_row, lse, mask=m_row)


@triton.jit
def tree_attention_fwd_kernel(
    q, k_cache, v_cache, page_table, prefix_lens, row_offsets, mask, out, lse, part_acc, part_ml,
    num_requests, num_rows, packed_tiles, q_row, q_head, k_page, k_slot, k_head, v_page, v_slot, v_head, table_row,
    scale, softcap,
    HQ: tl.constexpr, G: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BB: tl.constexpr,
    PAGE: tl.constexpr, WORDS: tl.constexpr, WORDS_BLOCK: tl.constexpr, SOFTCAP: tl.constexpr, FOLD: tl.constexpr,
    SPAN: tl.constexpr, TILE: tl.constexpr, LSE: tl.constexpr,
):  # fmt: skip
    tile, head, span = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    o_b = tl.arange(0, BB)
    offsets = tl.load(row_offsets + o_b, mask=o_b < num_requests, other=num_rows)
    rows = tl.load(row_offsets + o_b + 1, mask=o_b < num_requests, other=num_rows) - offsets
    alone = tile >= packed_tiles  # one row of a tree, from the last whole span of its prefix on
    if alone:
        row0 = (tile - packed_tiles) // tl.cdiv(G, BM)
        sub = (tile - packed_tiles) % tl.cdiv(G, BM)
        request = tl.sum((offsets + rows <= row0).to(tl.int32), 0)
        count = row0 * 0 + 1
    else:
        tiles = tl.cdiv(rows * G, BM)
        before = tl.cumsum(tiles, 0) <= tile
        request = tl.sum(before.to(tl.int32), 0)
        sub = tile - tl.sum(tl.where(before, tiles, 0), 0)
        row0 = tl.sum(tl.where(o_b == request, offsets, 0), 0)
        count = tl.sum(tl.where(o_b == request, rows, 0), 0)
    if request >= num_requests:
        return
    prefix_len = tl.load(prefix_lens + request)
    o_m = sub * BM + tl.arange(0, BM)
    m_m = o_m < count * G
    o_row = (row0 + o_m // G).to(tl.int64)
    o_head = head * G + o_m % G
    p_mask = mask + row0.to(tl.int64) * WORDS
    if WORDS == 0:  # chain: row t sees positions 0 .. prefix_len + t
        end_row = prefix_len + o_m // G + 1
        end_full = prefix_len + sub * BM // G + 1
        end = prefix_len + tl.minimum((sub * BM + BM - 1) // G, count - 1) + 1
        first_span = 0
    elif alone:
        end = prefix_len + count_bits(p_mask, WORDS, WORDS_BLOCK)
        end_row = end + o_m * 0
        end_full = prefix_len
        first_span = prefix_len // SPAN
    else:
        end = prefix_len // SPAN * SPAN
        end_row = end + o_m * 0
        end_full = end
        first_span = 0
    o_d = tl.arange(0, BD)[None, :]
    m_d = o_d < D
    p_q = q + o_row[:, None] * q_row + o_head.to(tl.int64)[:, None] * q_head + o_d
    p_k, p_v = k_cache + head.to(tl.int64) * k_head, v_cache + head.to(tl.int64) * v_head
    p_table = page_table + request.to(tl.int64) * table_row
    if FOLD:
        b_q = tl.load(p_q, mask=m_m[:, None] & m_d, other=0.0).to(k_cache.dtype.element_ty)  # [BM, BD]
        m = tl.full([BM], float("-inf"), tl.float32)
        den = tl.zeros([BM], tl.float32)
        acc = tl.zeros([BM, BD], tl.float32)
        if WORDS > 0:  # one span
            m2, den2, acc2 = reduce_span(
                b_q, p_k, p_v, p_table, p_mask, 0, prefix_len, end_full, end, end_row, k_page, k_slot, v_page, v_slot,
                scale, softcap, BM, D, BD, PAGE, WORDS, SOFTCAP, SPAN, TILE,
            )  # fmt: skip
            m, den, acc = fold(m, den, acc, m2, den2, acc2)
        else:
            for s in tl.range(0, tl.cdiv(end, SPAN), num_stages=1):
                m2, den2, acc2 = reduce_span(
                    b_q, p_k, p_v, p_table, p_mask, s, prefix_len, end_full, end, end_row, k_page, k_slot, v_page,
                    v_slot, scale, softcap, BM, D, BD, PAGE, WORDS, SOFTCAP, SPAN, TILE,
                )  # fmt: skip
                m, den, acc = fold(m, den, acc, m2, den2, acc2)
        store_result(out, lse, o_row * HQ + o_head, o_d, m_m, m_d, m, den, acc, D, LSE)
    else:
        if (span < first_span) | (span * SPAN >= end):
            return
        b_q = tl.load(p_q, mask=m_m[:, None] & m_d, other=0.0).to(k_cache.dtype.element_ty)
        m, den, acc = reduce_span(
            b_q, p_k, p_v, p_table, p_mask, span, prefix_len, end_full, end, end_row, k_page, k_slot, v_page, v_slot,
            scale, softcap, BM, D, BD, PAGE, WORDS, SOFTCAP, SPAN, TILE,
        )  # fmt: skip
        o_p = (span.to(tl.int64) * num_rows + o_row) * HQ + o_head
        tl.store(part_acc + o_p[:, None] * D + o_d, acc, mask=m_m[:, None] & m_d)
        tl.store(part_ml + o_p * 2, m, mask=m_m)
        tl.store(part_ml + o_p * 2 + 1, den, mask=m_m)


@triton.jit
def tree_attention_merge_kernel(
    prefix_lens, row_offsets, mask, out, lse, part_acc, part_ml, num_requests, num_rows,
    HQ: tl.constexpr, BH: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, BB: tl.constexpr, WORDS: tl.constexpr,
    WORDS_BLOCK: tl.constexpr, SPAN: tl.constexpr, UNROLL: tl.constexpr, LSE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    o_b = tl.arange(0, BB)
    ends = tl.load(row_offsets + o_b + 1, mask=o_b < num_requests, other=num_rows + 1)
    request = tl.sum((ends <= row).to(tl.int32), 0)
    prefix_len = tl.load(prefix_lens + request)
    if WORDS == 0:
        end = prefix_len + row - tl.load(row_offsets + request) + 1
    else:
        end = prefix_len + count_bits(mask + row.to(tl.int64) * WORDS, WORDS, WORDS_BLOCK)
    o_h = tl.program_id(1) * BH + tl.arange(0, BH)
    o_d = tl.arange(0, BD)[None, :]
    m_h, m_d = o_h < HQ, o_d < D
    m = tl.full([BH], float("-inf"), tl.float32)
    den = tl.zeros([BH], tl.float32)
    acc = tl.zeros([BH, BD], tl.float32)
    spans = tl.cdiv(end, SPAN)
    rows = (row * 0 + num_rows).to(tl.int64)
    for s0 in range(0, spans, UNROLL):
        for i in tl.static_range(UNROLL):  # loads run ahead of the ordered fold; a span past the end folds to itself
            o_p = ((s0 + i) * rows + row) * HQ + o_h
            there = m_h & (o_h * 0 + s0 + i < spans)
            m2 = tl.load(part_ml + o_p * 2, mask=there, other=float("-inf"))
            den2 = tl.load(part_ml + o_p * 2 + 1, mask=there, other=0.0)
            acc2 = tl.load(part_acc + o_p[:, None] * D + o_d, mask=there[:, None] & m_d, other=0.0)
            m, den, acc = fold(m, den, acc, m2, den2, acc2)
    store_result(out, lse, row.to(tl.int64) * HQ + o_h, o_d, m_h, m_d, m, den, acc, D, LSE)


def tree_attention(
    q, k_cache, v_cache, page_table, prefix_lens, row_offsets, mask=None, scale=1.0, softcap=0.0, return_lse=False
):
    """The Triton form of ssd.kernels.tree_attention; q is rounded to the caches' dtype.

    The number of spans follows page_table's width: hand over no more columns than the longest request needs.
    """
    check_dtypes(torch.int32, page_table=page_table, prefix_lens=prefix_lens, row_offsets=row_offsets)
    check_dtypes(torch.int64, mask=mask)
    (num_rows, num_heads, dim), (page_size, num_kv_heads) = q.shape, k_cache.shape[1:3]
    if q.dtype not in (k_cache.dtype, torch.float32) or v_cache.dtype != k_cache.dtype:
        raise TypeError(f"q: got {q.dtype} and caches of {k_cache.dtype} and {v_cache.dtype}, wanted one dtype")
    if dim > 256 or q.stride(2) != 1 or k_cache.stride(3) != 1 or v_cache.stride(3) != 1:
        raise ValueError(f"q: got head dim {dim} and strides {q.stride()}, wanted at most 256 and contiguous heads")
    if mask is not None and not (mask.is_contiguous() and mask.shape[0] == num_rows and 1 <= mask.shape[1] <= 8):
        raise ValueError(f"mask: got shape {tuple(mask.shape)}, wanted contiguous [{num_rows}, 1 to 8]")
    group, num_requests = num_heads // num_kv_heads, prefix_lens.shape[0]
    out = torch.empty((num_rows, num_heads, dim), dtype=q.dtype, device=q.device)
    lse = torch.empty((num_rows if return_lse else 0, num_heads), dtype=torch.float32, device=q.device)
    if num_rows == 0:
        return out, lse
    words = 0 if mask is None else 2 * mask.shape[1]
    bits = row_offsets if mask is None else mask.view(torch.int32)
    spans = triton.cdiv(page_table.shape[1] * page_size, SPAN)
    apart = mask is not None and spans == 1  # no whole span of prefix: every row is a program of its own
    bm = 16 if (group if apart else num_rows * group / num_requests) <= 16 else 32
    packed = 0 if apart else num_rows * group // bm + num_requests
    fold_here = spans == 1 or (mask is None and packed * num_kv_heads >= FOLD_TILES)
    tiles = packed if mask is None else packed + num_rows * triton.cdiv(group, bm)
    parts = 0 if fold_here else spans * num_rows * num_heads
    part_acc = torch.empty((parts, dim), dtype=torch.float32, device=q.device)
    part_ml = torch.empty((parts, 2), dtype=torch.float32, device=q.device)
    log2e = 1.4426950408889634
    block = {
        "D": dim,
        "BD": max(16, triton.next_power_of_2(dim)),
        "BB": triton.next_power_of_2(num_requests),
        "WORDS": words,
        "WORDS_BLOCK": triton.next_power_of_2(max(words, 1)),
        "SPAN": SPAN,
        "LSE": return_lse,
    }
    wide = bm == 32  # warps and registers: no bit depends on them; none of these spills
    tree_attention_fwd_kernel[tiles, num_kv_heads, 1 if fold_here else spans](
        q, k_cache, v_cache, page_table, prefix_lens, row_offsets, bits, out, lse, part_acc, part_ml,
        num_requests, num_rows, packed, q.stride(0), q.stride(1), *k_cache.stride()[:3], *v_cache.stride()[:3],
        page_table.stride(0), 2 * scale * log2e / softcap if softcap > 0 else scale * log2e, softcap * log2e,
        HQ=num_heads, G=group, BM=bm, PAGE=page_size, SOFTCAP=softcap > 0, FOLD=fold_here, TILE=TILE, **block,
        num_warps=8 if wide else 4, num_stages=2, maxnreg=255 if wide and (words > 2 or dim < block["BD"]) else None,
        enable_fp_fusion=False,
    )  # fmt: skip
    if not fold_here:
        heads = min(4, triton.next_power_of_2(num_heads))
        tree_attention_merge_kernel[num_rows, triton.cdiv(num_heads, heads)](
            prefix_lens, row_offsets, bits, out, lse, part_acc, part_ml, num_requests, num_rows,
            HQ=num_heads, BH=heads, UNROLL=8, **block, num_warps=4, maxnreg=128, enable_fp_fusion=False,
        )  # fmt: skip
    return out, lse
