import torch
import triton
import triton.language as tl

from ..check import check_dtypes


@triton.jit
def embedding_fwd_kernel(ids, table, out, vocab, n, table_row, BLOCK: tl.constexpr):
    row, o_n = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    token = tl.load(ids + row)
    known = (o_n < n) & (token + o_n * 0 >= 0) & (token + o_n * 0 < vocab)
    b_x = tl.load(table + token * table_row + o_n, mask=known, other=float("nan")).to(tl.float32)
    tl.store(out + row.to(tl.int64) * n + o_n, b_x, mask=o_n < n)


def embedding(ids, table):
    """Rows float32 [R, H]; NaN for an id outside the table, where the CPU form raises, since nothing waits here."""
    check_dtypes(torch.int64, ids=ids)
    rows, (vocab, n) = ids.shape[0], table.shape
    out = torch.empty((rows, n), dtype=torch.float32, device=table.device)
    if rows:
        embedding_fwd_kernel[rows, triton.cdiv(n, 1024)](
            ids, table, out, vocab, n, table.stride(0), BLOCK=1024, num_warps=4, enable_fp_fusion=False
        )
    return out
