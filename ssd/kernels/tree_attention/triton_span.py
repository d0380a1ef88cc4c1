"""Reduces one span of keys for a tile of rows, and folds the results of spans; Triton functions of tree attention."""

import triton
import triton.language as tl


@triton.jit
def popcount(x):
    x = x - ((x >> 1) & 0x55555555)
    x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F
    return (x * 0x01010101) >> 24


@triton.jit
def count_bits(p_mask, WORDS: tl.constexpr):
    bits = tl.load(p_mask) * 0
    for w in tl.static_range(WORDS):
        bits += popcount(tl.load(p_mask + w))
    return bits


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
    """The state of two sets of keys, the later one second. Zeros of acc are positive (+ 0.0), so a fold with the state
    of no key changes no bit."""
    new = tl.maximum(m, m2)
    ref = tl.where(new == float("-inf"), 0.0, new)
    a, b = tl.exp2(m - ref), tl.exp2(m2 - ref)
    return new, den * a + den2 * b, acc * a[:, None] + acc2 * b[:, None] + 0.0


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
def load_tile(
    p_k, p_v, p_table, index, exists, k_page, k_slot, v_page, v_slot,
    D: tl.constexpr, BD: tl.constexpr, PAGE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Keys and values [TILE, BD] of logical indices; zeros where exists is false, if MASKED."""
    o_d = tl.arange(0, BD)[None, :]
    if MASKED:
        page = tl.load(p_table + index // PAGE, mask=exists, other=0).to(tl.int64)
    else:
        page = tl.load(p_table + index // PAGE).to(tl.int64)
    at = (index % PAGE).to(tl.int64)
    o_k = (page * k_page + at * k_slot)[:, None] + o_d
    o_v = (page * v_page + at * v_slot)[:, None] + o_d
    if MASKED:
        m_k = exists[:, None] & (o_d < D)
        return tl.load(p_k + o_k, mask=m_k, other=0.0), tl.load(p_v + o_v, mask=m_k, other=0.0)
    elif D < BD:
        return tl.load(p_k + o_k, mask=o_d < D, other=0.0), tl.load(p_v + o_v, mask=o_d < D, other=0.0)
    else:
        return tl.load(p_k + o_k), tl.load(p_v + o_v)


@triton.jit
def reduce_path(
    b_q, p_k, p_v, p_table, p_mask, span, prefix_len, end, k_page, k_slot, v_page, v_slot, scale, softcap,
    BM: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, PAGE: tl.constexpr, WORDS: tl.constexpr,
    SOFTCAP: tl.constexpr, SPAN: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The state of a span of one row: keys below prefix_len, then those below end, its path, of which mask tells."""
    o_t = tl.arange(0, TILE)
    m, den, acc = start_span(BM, BD)
    first = span * SPAN
    last = tl.minimum(first + SPAN, end)
    full = first + tl.maximum(tl.minimum(last, prefix_len) - first, 0) // TILE * TILE
    for start in range(first, full, TILE):
        b_k, b_v = load_tile(
            p_k, p_v, p_table, start + o_t, o_t >= 0, k_page, k_slot, v_page, v_slot, D, BD, PAGE, False
        )  # fmt: skip
        m, den, acc = fold_tile(b_q, b_k, b_v, 0, m, den, acc, scale, softcap, False, False, SOFTCAP, TILE)
    for start in range(full, last, TILE):
        j = start + o_t
        index = tl.where(j < prefix_len, j, prefix_len + nth_set_bit(p_mask, j - prefix_len, WORDS))
        b_k, b_v = load_tile(p_k, p_v, p_table, index, j < end, k_page, k_slot, v_page, v_slot, D, BD, PAGE, True)
        visible = (j < end)[None, :]
        m, den, acc = fold_tile(b_q, b_k, b_v, visible, m, den, acc, scale, softcap, True, False, SOFTCAP, TILE)
    return m, tl.max(den, 1), acc + 0.0


@triton.jit
def start_span(BM: tl.constexpr, BD: tl.constexpr):
    """The state before the first key of a span, its sum in all columns of a product."""
    return tl.full([BM], float("-inf"), tl.float32), tl.zeros([BM, 16], tl.float32), tl.zeros([BM, BD], tl.float32)


@triton.jit
def nothing(BM: tl.constexpr, BD: tl.constexpr):
    """The state of no key."""
    return tl.full([BM], float("-inf"), tl.float32), tl.zeros([BM], tl.float32), tl.zeros([BM, BD], tl.float32)
