"""verify_coupled in Triton: every row draws its token at its depth, then one program a request walks its tree."""

import torch
import triton
import triton.language as tl

from ..check import check_dtypes
from ..sample.triton import draw


@triton.jit
def rows_kernel(row_offsets, parents, entries, depths, nodes, parents_row, BLOCK: tl.constexpr):
    """Store the index of each row's request, and its depth below the root."""
    request, o_n = tl.program_id(0), tl.arange(0, BLOCK)
    first = tl.load(row_offsets + request)
    count = tl.load(row_offsets + request + 1) - first
    m_n = o_n < count
    p_parents = parents + request.to(tl.int64) * parents_row
    above, depth = o_n - 1, o_n * 0  # row i holds node i - 1; -1 is the root
    for _ in range(0, count):
        depth += (above >= 0).to(tl.int32)
        above = tl.load(p_parents + above, mask=m_n & (above >= 0), other=-1).to(tl.int32)
    tl.store(entries + first + o_n, o_n * 0 + request, mask=m_n)
    tl.store(depths + first + o_n, depth, mask=m_n)


@triton.jit
def walk_kernel(
    row_offsets, tokens, parents, drawn, values, path, accepted, emitted, logprobs, nodes, tokens_row, parents_row,
    BLOCK: tl.constexpr, LOGPROBS: tl.constexpr,
):  # fmt: skip
    request, o_n = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    first = tl.load(row_offsets + request)
    count = tl.load(row_offsets + request + 1) - first - 1
    m_n = o_n < count
    b_tokens = tl.load(tokens + request * tokens_row + o_n, mask=m_n, other=-1).to(tl.int64)
    b_parents = tl.load(parents + request * parents_row + o_n, mask=m_n, other=-2).to(tl.int32)
    p_path, p_emitted, p_values = (
        path + request * nodes,
        emitted + request * (nodes + 1),
        logprobs + request * (nodes + 1),
    )
    node, depth = first * 0 - 1, first * 0
    for i in range(0, nodes + 1):
        going = depth == i  # the walk has come this far
        row = first + node + 1
        token = tl.load(drawn + row, mask=going, other=-1)
        tl.store(p_emitted + i, token)
        if LOGPROBS:
            tl.store(p_values + i, tl.load(values + row, mask=going, other=float("-inf")))
        child = tl.min(tl.where(m_n & (b_parents == node) & (b_tokens == token), o_n, BLOCK), 0)
        found = going & (child < BLOCK) & (token >= 0)
        tl.store(p_path + i, tl.where(found, child, -1).to(tl.int8), mask=i < nodes)
        node = tl.where(found, child, node)
        depth += found.to(tl.int32)
    tl.store(accepted + request, depth)


def verify_coupled(
    logits, row_offsets, tokens, parents, temperature, top_k, top_p, min_p, seeds, positions, logprobs=False
):
    (batch, nodes), device = tokens.shape, logits.device
    check_dtypes(torch.int32, row_offsets=row_offsets, tokens=tokens)
    check_dtypes(torch.int8, parents=parents)
    if nodes > 64 or parents.shape != tokens.shape or tokens.stride(1) != 1 or parents.stride(1) != 1:
        raise ValueError(f"parents: got {tuple(parents.shape)} for tokens {tuple(tokens.shape)}, wanted [B, N <= 64]")
    entries, depths = (torch.empty(logits.shape[0], dtype=torch.int32, device=device) for _ in range(2))  # both aligned
    path = torch.empty((batch, nodes), dtype=torch.int8, device=device)
    accepted = torch.empty(batch, dtype=torch.int32, device=device)
    emitted = torch.empty((batch, nodes + 1), dtype=torch.int64, device=device)
    values = torch.empty((batch if logprobs else 0, nodes + 1), dtype=torch.float32, device=device)
    if batch:
        block = triton.next_power_of_2(nodes + 1)
        rows_kernel[(batch,)](
            row_offsets,
            parents,
            entries,
            depths,
            nodes,
            parents.stride(0),
            BLOCK=block,
            num_warps=1,
            enable_fp_fusion=False,
        )
        params = (temperature, top_k, top_p, min_p, seeds, positions)
        drawn, row_values = draw(logits, *params, logprobs, entries, depths)
        walk_kernel[(batch,)](
            row_offsets, tokens, parents, drawn, row_values, path, accepted, emitted, values, nodes, tokens.stride(0),
            parents.stride(0), BLOCK=block, LOGPROBS=logprobs, num_warps=1, enable_fp_fusion=False,
        )  # fmt: skip
    return path, accepted, emitted, values
