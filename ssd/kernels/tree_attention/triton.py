"""Tree attention in Triton: split by position, G * T rows packed into M, an ordered merge, nothing atomic.

Work. The prefix is cut at fixed positions into spans of SPAN keys. A program reduces spans for one KV head and one tile
of BM packed rows (row t, query head g of the group: m = t * G + g, for any G), TILE keys at a time, folds them by nodes
of a tree that is fixed by position, and writes (accumulator, maximum, sum); the second kernel folds a row's parts in
ascending order. Which spans make a part is decided on the device, by what the batch holds (triton_plan.py): the grid
has as many programs as are resident at once, which walk the list of parts. With so many rows that they fill the device
(prefill), and where there is one span, a program folds all spans of its rows: the same folds, the same bits.

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
from .triton_plan import HEADER, ITEM, RECORD, ROWS_ALONE, Plan, make_plan, node_spans, part_end
from .triton_span import count_bits, fold, fold_tile, load_tile, nothing, reduce_path, start_span

SPAN, TILE = 256, 64
FAN = 16  # spans of a node
STAGES = 5  # keys and values have two buffers: a tile arrives while another is multiplied
STAGES_WIDE = 3  # one buffer, where two would take more than the 99 KiB that every device has


@triton.jit
def fold_if(ends, m, den, acc, m2, den2, acc2):
    """If a node ends here, folds its state (the second) into that of the node above (the first). The merge does so
    without a branch, which loads could not pass."""
    none = float("-inf")
    m, den, acc = fold(m, den, acc, tl.where(ends, m2, none), tl.where(ends, den2, 0.0), tl.where(ends, acc2, 0.0))
    return m, den, acc, tl.where(ends, none, m2), tl.where(ends, 0.0, den2), tl.where(ends, 0.0, acc2)


@triton.jit
def fold_ends(
    end, m, den, acc, m1, den1, acc1, m2, den2, acc2,
    BM: tl.constexpr, BD: tl.constexpr, TILES: tl.constexpr, FAN: tl.constexpr,
):  # fmt: skip
    """Folds a span of so many TILES into its node (1), and the node into the row (2), where they end with tile end."""
    if end % TILES == 0:
        m1, den1, acc1 = fold(m1, den1, acc1, m, tl.max(den, 1), acc + 0.0)
        m, den, acc = start_span(BM, BD)
        if end % (TILES * FAN) == 0:
            m2, den2, acc2 = fold(m2, den2, acc2, m1, den1, acc1)
            m1, den1, acc1 = nothing(BM, BD)
    return m, den, acc, m1, den1, acc1, m2, den2, acc2


@triton.jit
def store_part(part_acc, part_ml, o_p, o_d, m_row, m_d, m, den, acc, D: tl.constexpr):
    tl.store(part_acc + o_p[:, None] * D + o_d, acc, mask=m_row[:, None] & m_d)
    tl.store(part_ml + o_p * 2, m, mask=m_row)
    tl.store(part_ml + o_p * 2 + 1, den, mask=m_row)


@triton.jit
def store_result(
    p_out, p_lse, o_row, o_head, o_d, m_row, m_d, m, den, acc, out_row, lse_row, D: tl.constexpr, LSE: tl.constexpr
):
    """Store out = acc / den and lse = ln(2) (m + log2 den); 0 and -inf for no key."""
    y = tl.where(den[:, None] != 0, acc / tl.where(den != 0, den, 1.0)[:, None], 0.0)  # NaN stays NaN
    p_y = p_out + o_row[:, None] * out_row + o_head[:, None] * D + o_d
    tl.store(p_y, y.to(p_out.dtype.element_ty), mask=m_row[:, None] & m_d)
    lse = tl.where(den != 0, (m + tl.log2(tl.where(den != 0, den, 1.0))) * 0.6931471805599453, float("-inf"))
    if LSE:
        tl.store(p_lse + o_row * lse_row + o_head, lse, mask=m_row)


@triton.jit
def attend_tile(
    q, k_cache, p_k, p_v, p_table, out, lse, part_acc, part_ml, head, prefix_len, row, rows, tile, first, last, part,
    heads, q_row, q_head, k_page, k_slot, v_page, v_slot, out_row, lse_row, scale, softcap,
    G: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, PAGE: tl.constexpr,
    CHAIN: tl.constexpr, SOFTCAP: tl.constexpr, FOLD: tl.constexpr, SPAN: tl.constexpr, FAN: tl.constexpr,
    TILE: tl.constexpr, LSE: tl.constexpr,
):  # fmt: skip
    """Spans first to last of a tile of rows: the whole rows if FOLD, else a part of them."""
    o_d = tl.arange(0, BD)[None, :]
    m_d = o_d < D
    o_m = tile * BM + tl.arange(0, BM)
    m_m = o_m < rows * G
    o_t, o_head = o_m // G, head * G + o_m % G
    o_row = (row + o_t).to(tl.int64)
    if CHAIN:  # row t sees positions 0 .. prefix_len + t
        end_row = prefix_len + o_t + 1
        end_full = prefix_len + tile * BM // G + 1
        end = prefix_len + tl.minimum((tile * BM + BM - 1) // G, rows - 1) + 1
    else:  # whole spans of the prefix
        end = last * SPAN
        end_row = end + o_t * 0
        end_full = end
    p_q = q + o_row[:, None] * q_row + o_head.to(tl.int64)[:, None] * q_head + o_d
    b_q = tl.load(p_q, mask=m_m[:, None] & m_d, other=0.0).to(k_cache.dtype.element_ty)  # [BM, BD]
    o_j = tl.arange(0, TILE)
    last_tile = tl.cdiv(tl.minimum(last * SPAN, end), TILE)
    full = tl.minimum(tl.minimum(last * SPAN, end_full) // TILE, last_tile)  # tiles that all rows see
    m, den, acc = start_span(BM, BD)
    m1, den1, acc1 = nothing(BM, BD)
    m2, den2, acc2 = nothing(BM, BD)
    for i in range(first * (SPAN // TILE), full):
        j = i * TILE + o_j
        b_k, b_v = load_tile(p_k, p_v, p_table, j, o_j >= 0, k_page, k_slot, v_page, v_slot, D, BD, PAGE, False)
        m, den, acc = fold_tile(b_q, b_k, b_v, 0, m, den, acc, scale, softcap, False, False, SOFTCAP, TILE)
        m, den, acc, m1, den1, acc1, m2, den2, acc2 = fold_ends(
            i + 1, m, den, acc, m1, den1, acc1, m2, den2, acc2, BM, BD, SPAN // TILE, FAN
        )  # fmt: skip
    if CHAIN:
        for i in range(tl.maximum(full, first * (SPAN // TILE)), last_tile):
            j = i * TILE + o_j
            b_k, b_v = load_tile(p_k, p_v, p_table, j, j < end, k_page, k_slot, v_page, v_slot, D, BD, PAGE, True)
            visible = j[None, :] < end_row[:, None]
            m, den, acc = fold_tile(b_q, b_k, b_v, visible, m, den, acc, scale, softcap, True, True, SOFTCAP, TILE)
            m, den, acc, m1, den1, acc1, m2, den2, acc2 = fold_ends(
                i + 1, m, den, acc, m1, den1, acc1, m2, den2, acc2, BM, BD, SPAN // TILE, FAN
            )  # fmt: skip
    m1, den1, acc1 = fold(m1, den1, acc1, m, tl.max(den, 1), acc + 0.0)
    m2, den2, acc2 = fold(m2, den2, acc2, m1, den1, acc1)
    if FOLD:
        store_result(out, lse, o_row, o_head, o_d, m_m, m_d, m2, den2, acc2, out_row, lse_row, D, LSE)
    else:
        o_p = (part + o_t).to(tl.int64) * heads + o_head
        store_part(part_acc, part_ml, o_p, o_d, m_m, m_d, m2, den2, acc2, D)


@triton.jit
def attend_alone(
    q, k_cache, p_k, p_v, p_table, p_mask, part_acc, part_ml, head, prefix_len, row, tile, first, last, part,
    heads, q_row, q_head, k_page, k_slot, v_page, v_slot, scale, softcap,
    G: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, PAGE: tl.constexpr,
    WORDS: tl.constexpr, SOFTCAP: tl.constexpr, SPAN: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Spans first to last of one row of a tree, a part each."""
    o_d = tl.arange(0, BD)[None, :]
    m_d = o_d < D
    o_g = tile * BM + tl.arange(0, BM)
    m_g = o_g < G
    o_head = head * G + o_g
    p_q = q + row.to(tl.int64) * q_row + o_head.to(tl.int64)[:, None] * q_head + o_d
    b_q = tl.load(p_q, mask=m_g[:, None] & m_d, other=0.0).to(k_cache.dtype.element_ty)
    end = prefix_len + count_bits(p_mask, WORDS)
    for s in tl.range(first, last, num_stages=1):
        m, den, acc = reduce_path(
            b_q, p_k, p_v, p_table, p_mask, s, prefix_len, end, k_page, k_slot, v_page, v_slot, scale, softcap,
            BM, D, BD, PAGE, WORDS, SOFTCAP, SPAN, TILE,
        )  # fmt: skip
        o_p = (part + s - first).to(tl.int64) * heads + o_head
        store_part(part_acc, part_ml, o_p, o_d, m_g, m_d, m, den, acc, D)


@triton.jit(do_not_specialize=["num_rows", "kv_heads", "table_row"])
def tree_attention_fwd_kernel(
    q, k_cache, v_cache, page_table, prefix_lens, mask, work, out, lse, part_acc, part_ml, num_rows, kv_heads,
    q_row, q_head, k_page, k_slot, k_head, v_page, v_slot, v_head, table_row, out_row, lse_row, scale, softcap,
    G: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BA: tl.constexpr, PAGE: tl.constexpr,
    WORDS: tl.constexpr, SOFTCAP: tl.constexpr, FOLD: tl.constexpr, SPAN: tl.constexpr, FAN: tl.constexpr,
    TILE: tl.constexpr, LSE: tl.constexpr,
):  # fmt: skip
    packed = tl.load(work) * kv_heads
    items = packed
    if WORDS > 0:
        items += num_rows * (tl.cdiv(G, BA) * kv_heads)
    for i in tl.range(tl.program_id(0), items, tl.num_programs(0), num_stages=1):
        head = i % kv_heads
        p_item = work + HEADER + RECORD * num_rows + ITEM * (i // kv_heads)
        request, row, rows, tile = tl.load(p_item), tl.load(p_item + 1), tl.load(p_item + 2), tl.load(p_item + 3)
        first, last, part = tl.load(p_item + 4), tl.load(p_item + 5), tl.load(p_item + 6)
        prefix_len = tl.load(prefix_lens + request)
        p_k, p_v = k_cache + head.to(tl.int64) * k_head, v_cache + head.to(tl.int64) * v_head
        p_table = page_table + request.to(tl.int64) * table_row
        if i < packed:
            attend_tile(
                q, k_cache, p_k, p_v, p_table, out, lse, part_acc, part_ml, head, prefix_len, row, rows, tile, first,
                last, part, kv_heads * G, q_row, q_head, k_page, k_slot, v_page, v_slot, out_row, lse_row, scale,
                softcap, G, D, BD, BM, PAGE, WORDS == 0, SOFTCAP, FOLD, SPAN, FAN, TILE, LSE,
            )  # fmt: skip
        elif WORDS > 0:  # one row, from the last whole span of its prefix on
            attend_alone(
                q, k_cache, p_k, p_v, p_table, mask + row.to(tl.int64) * WORDS, part_acc, part_ml, head, prefix_len,
                row, tile, first, last, part, kv_heads * G, q_row, q_head, k_page, k_slot, v_page, v_slot, scale,
                softcap, G, D, BD, BA, PAGE, WORDS, SOFTCAP, SPAN, TILE,
            )  # fmt: skip


@triton.jit
def load_part(part_acc, part_ml, part, i, count, o_h, o_d, m_h, m_d, heads, D: tl.constexpr):
    """The state in a part, that of no key if i, its number in its row, is not below count."""
    o_p = part.to(tl.int64) * heads + o_h
    m_p = m_h & (o_h * 0 + i < count)
    m = tl.load(part_ml + o_p * 2, mask=m_p, other=float("-inf"))
    den = tl.load(part_ml + o_p * 2 + 1, mask=m_p, other=0.0)
    return m, den, tl.load(part_acc + o_p[:, None] * D + o_d, mask=m_p[:, None] & m_d, other=0.0)


@triton.jit(do_not_specialize=["capacity", "heads"])
def tree_attention_merge_kernel(
    work, out, lse, part_acc, part_ml, capacity, heads, out_row, lse_row,
    BH: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, ALONE_SPANS: tl.constexpr, FAN: tl.constexpr,
    UNROLL: tl.constexpr, LSE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    p_record = work + HEADER + RECORD * row
    part, step, spans, last = tl.load(p_record), tl.load(p_record + 1), tl.load(p_record + 2), tl.load(p_record + 3)
    level = tl.load(work + 1)
    parts = spans // node_spans(level, FAN) + level
    o_h = tl.program_id(1) * BH + tl.arange(0, BH)
    o_d = tl.arange(0, BD)[None, :]
    m_h, m_d = o_h < heads, o_d < D
    m2, den2, acc2 = nothing(BH, BD)
    m1, den1, acc1 = nothing(BH, BD)
    for p0 in range(0, parts, UNROLL):
        for u in tl.static_range(UNROLL):  # loads run ahead of the ordered folds
            p = p0 + u
            m, den, acc = load_part(part_acc, part_ml, part + p * step, p, parts, o_h, o_d, m_h, m_d, heads, D)
            m1, den1, acc1 = fold(m1, den1, acc1, m, den, acc)
            end = tl.where(p < parts, part_end(p, level, spans, FAN), 1)
            m2, den2, acc2, m1, den1, acc1 = fold_if(end % FAN == 0, m2, den2, acc2, m1, den1, acc1)
    for u in tl.static_range(ALONE_SPANS):
        s = spans + u
        alone = capacity + row * ALONE_SPANS + u
        m, den, acc = load_part(part_acc, part_ml, alone, s, last, o_h, o_d, m_h, m_d, heads, D)
        m1, den1, acc1 = fold(m1, den1, acc1, m, den, acc)
        m2, den2, acc2, m1, den1, acc1 = fold_if((s + 1) % FAN == 0, m2, den2, acc2, m1, den1, acc1)
    m2, den2, acc2 = fold(m2, den2, acc2, m1, den1, acc1)
    o_row = row.to(tl.int64) + o_h * 0
    store_result(out, lse, o_row, o_h, o_d, m_h, m_d, m2, den2, acc2, out_row, lse_row, D, LSE)


def plan_attention(q_shape, k_cache, page_table, prefix_lens, row_offsets, mask=None) -> Plan:
    """The work of all layers of a pass, for `attend`. q_shape: [R, Hq, D]; the rest as in tree_attention."""
    check_dtypes(torch.int32, page_table=page_table, prefix_lens=prefix_lens, row_offsets=row_offsets)
    check_dtypes(torch.int64, mask=mask)
    num_rows = q_shape[0]
    if mask is not None and not (mask.is_contiguous() and mask.shape[0] == num_rows and 1 <= mask.shape[1] <= 8):
        raise ValueError(f"mask: got shape {tuple(mask.shape)}, wanted contiguous [{num_rows}, 1 to 8]")
    return make_plan(q_shape, k_cache.shape[1:3], page_table, prefix_lens, row_offsets, mask, SPAN, FAN)


def attend(plan: Plan, q, k_cache, v_cache, scale=1.0, softcap=0.0, return_lse=False):
    """tree_attention of one layer, with the plan of its pass."""
    (num_rows, num_heads, dim), (page_size, num_kv_heads) = q.shape, k_cache.shape[1:3]
    if q.dtype not in (k_cache.dtype, torch.float32) or v_cache.dtype != k_cache.dtype:
        raise TypeError(f"q: got {q.dtype} and caches of {k_cache.dtype} and {v_cache.dtype}, wanted one dtype")
    if dim > 256 or q.stride(2) != 1 or k_cache.stride(3) != 1 or v_cache.stride(3) != 1:
        raise ValueError(f"q: got head dim {dim} and strides {q.stride()}, wanted at most 256 and contiguous heads")
    out = torch.empty((num_rows, num_heads, dim), dtype=q.dtype, device=q.device)
    lse = torch.empty((num_rows if return_lse else 0, num_heads), dtype=torch.float32, device=q.device)
    if num_rows == 0:
        return out, lse
    log2e = 1.4426950408889634
    mask, group, heads = plan.mask, num_heads // num_kv_heads, plan.kv_heads * (num_heads // num_kv_heads)
    words = 0 if mask is None else 2 * mask.shape[1]
    bits = plan.prefix_lens if mask is None else mask.view(torch.int32)
    shared = {"D": dim, "BD": max(16, triton.next_power_of_2(dim)), "FAN": FAN, "LSE": return_lse}
    for first in range(0, num_kv_heads, plan.kv_heads):
        some = q, k_cache, v_cache, out, lse
        if plan.kv_heads < num_kv_heads:
            kv = k_cache.narrow(2, first, plan.kv_heads), v_cache.narrow(2, first, plan.kv_heads)
            own, *rest = (t.narrow(1, first * group, heads) for t in (q, out, lse))
            some = own, *kv, *rest
        own_q, k, v, own_out, own_lse = some
        tree_attention_fwd_kernel[(plan.programs,)](
            own_q, k, v, plan.page_table, plan.prefix_lens, bits, plan.work, own_out, own_lse, plan.part_acc,
            plan.part_ml, num_rows, plan.kv_heads, q.stride(0), q.stride(1), *k.stride()[:3], *v.stride()[:3],
            plan.page_table.stride(0), out.stride(0), lse.stride(0),
            2 * scale * log2e / softcap if softcap > 0 else scale * log2e, softcap * log2e,
            G=group, BM=plan.rows_of_tile, BA=ROWS_ALONE, PAGE=page_size, WORDS=words, SOFTCAP=softcap > 0,
            FOLD=plan.fold, SPAN=SPAN, TILE=TILE, **shared, num_warps=plan.warps,
            num_stages=STAGES if dim <= 128 and k.element_size() == 2 else STAGES_WIDE, enable_fp_fusion=False,
        )  # fmt: skip
        if not plan.fold:
            block = min(4, triton.next_power_of_2(num_heads))
            tree_attention_merge_kernel[num_rows, triton.cdiv(heads, block)](
                plan.work, own_out, own_lse, plan.part_acc, plan.part_ml, plan.capacity, heads, out.stride(0),
                lse.stride(0), BH=block, ALONE_SPANS=plan.alone_spans, UNROLL=8, **shared, num_warps=4,
                enable_fp_fusion=False,
            )  # fmt: skip
    return out, lse


def tree_attention(
    q, k_cache, v_cache, page_table, prefix_lens, row_offsets, mask=None, scale=1.0, softcap=0.0, return_lse=False
):
    """The Triton form of ssd.kernels.tree_attention; q is rounded to the caches' dtype."""
    plan = plan_attention(q.shape, k_cache, page_table, prefix_lens, row_offsets, mask)
    return attend(plan, q, k_cache, v_cache, scale, softcap, return_lse)
