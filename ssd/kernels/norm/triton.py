import torch
import triton
import triton.language as tl


@triton.jit
def rms_norm_fwd_kernel(
    x, residual, weight, y, total, n, x_row, residual_row, eps, BLOCK: tl.constexpr, ADD: tl.constexpr
):
    row, o_n = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    m_n = o_n < n
    b_x = tl.load(x + row * x_row + o_n, mask=m_n, other=0.0).to(tl.float32)
    if ADD:
        b_x += tl.load(residual + row * residual_row + o_n, mask=m_n, other=0.0).to(tl.float32)
        tl.store(total + row * n + o_n, b_x, mask=m_n)
    scale = 1 / tl.sqrt_rn(tl.sum(b_x * b_x, 0) / n + eps)
    b_w = tl.load(weight + o_n, mask=m_n, other=0.0).to(tl.float32)
    tl.store(y + row * n + o_n, (b_x * scale * b_w).to(y.dtype.element_ty), mask=m_n)


def launch(x, residual, weight, eps):
    rows, n = x.shape
    y = torch.empty((rows, n), dtype=weight.dtype, device=x.device)
    total = None if residual is None else torch.empty((rows, n), dtype=torch.float32, device=x.device)
    if rows:
        block = triton.next_power_of_2(n)
        rms_norm_fwd_kernel[(rows,)](
            x, residual, weight, y, total, n, x.stride(0), 0 if residual is None else residual.stride(0), eps,
            BLOCK=block, ADD=residual is not None, num_warps=4 if block <= 4096 else 16, enable_fp_fusion=False,
        )  # fmt: skip
    return y, total


def rms_norm(x, weight, eps):
    """The normed rows in the weight's dtype; the residual stream stays float32."""
    return launch(x, None, weight, eps)[0]


def add_rms_norm(x, residual, weight, eps):
    return launch(x, residual, weight, eps)
