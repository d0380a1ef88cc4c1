"""The same attention by others: torch SDPA with a mask, flex_attention, flash-attn and FlashInfer.

Each function here makes the call for a turn, whose result is in the order of [B, T, Hq, D]. Peers without pages get
contiguous K and V, and the copy is not timed.
"""

from collections.abc import Callable
from importlib import import_module

import torch
import torch.nn.functional as F

from ..shapes import PAGE


def sdpa(x):
    """torch SDPA with the heads of a group as rows, which is several times as fast as enable_gqa, where K and V are
    repeated. The mask is a bias with rows of whole 32 bytes, which torch's kernels need; a single row sees everything
    and needs none."""
    size = x.size
    kv_heads = x.size.model.kv_heads
    q = x.q.to(x.k.dtype).unflatten(0, (size.batch, size.rows)).unflatten(2, (kv_heads, -1))  # [B, T, Hkv, G, D]
    group = q.shape[3]
    query = q.permute(0, 2, 3, 1, 4).flatten(2, 3).contiguous()  # [B, Hkv, G T, D]
    bias = None
    if not x.seen.all():
        wide = torch.zeros(group * size.rows, -(-size.length // 16) * 16, dtype=query.dtype, device=x.device)
        bias = wide[:, : size.length].masked_fill_(~x.seen.repeat(group, 1), -torch.inf)

    def call(turn):
        k, v = x.dense[turn % len(x.dense)]
        y = F.scaled_dot_product_attention(query, k, v, bias, scale=x.scale)
        return y.unflatten(2, (group, size.rows)).permute(0, 3, 1, 2, 4)  # [B, T, Hkv, G, D]

    return call


def flex(x):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    size = x.size
    seen = x.seen
    query = x.q.to(x.k.dtype).unflatten(0, (size.batch, size.rows)).transpose(1, 2).contiguous()
    mask = create_block_mask(lambda b, h, i, j: seen[i, j], None, None, size.rows, size.length, device=x.device)
    compiled = torch.compile(flex_attention)

    def call(turn):
        k, v = x.dense[turn % len(x.dense)]
        return compiled(query, k, v, block_mask=mask, scale=x.scale, enable_gqa=True).transpose(1, 2)

    return call


def flash_attn(x):
    """flash-attn on pages of 256 tokens. It has no trees, so it runs for one row only, which is a chain too."""
    from flash_attn import flash_attn_with_kvcache

    batch = x.size.batch
    length = x.size.length
    room = -(-length // 256) * 256
    table = torch.arange(batch * room // 256, dtype=torch.int32, device=x.device).view(batch, -1)
    lengths = torch.full((batch,), length, dtype=torch.int32, device=x.device)
    q = x.q.to(x.k.dtype).unsqueeze(1)
    paged = [
        [F.pad(c.transpose(1, 2), (0, 0, 0, 0, 0, room - length)).reshape(-1, 256, *c.shape[1::2]) for c in kv]
        for kv in x.dense
    ]

    def call(turn):
        where = {"cache_seqlens": lengths, "block_table": table}
        return flash_attn_with_kvcache(q, *paged[turn % len(paged)], **where, softmax_scale=x.scale, causal=True)

    return call


def flash_infer(x):
    """FlashInfer on the same pages as tree attention, with its custom mask; for one row, its decoding on tensor cores.
    Its planning on the host before a launch is not timed."""
    import flashinfer

    size = x.size
    m = x.size.model
    q = x.q.to(x.k.dtype)
    workspace = torch.empty(128 << 20, dtype=torch.uint8, device=x.device)
    starts = torch.arange(size.batch + 1, dtype=torch.int32, device=x.device)
    last = torch.full((size.batch,), (size.length - 1) % PAGE + 1, dtype=torch.int32, device=x.device)
    shape = (m.heads, m.kv_heads, m.head_dim, PAGE)
    how = {"sm_scale": x.scale, "q_data_type": q.dtype, "kv_data_type": x.k.dtype}
    planned = []
    for table in x.tables:
        where = (starts * table.shape[1], table.flatten(), last)
        if size.rows == 1:
            wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=True)
            wrapper.plan(*where, *shape, **how)
        else:
            wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
            seen = x.seen.repeat(size.batch, 1).flatten()
            wrapper.plan(starts * size.rows, *where, *shape, custom_mask=seen, **how)
        planned.append(wrapper)

    def call(turn):
        return planned[turn % len(planned)].run(q, (x.k, x.v))

    return call


def installed(package: str) -> bool:
    try:
        import_module(package)
    except ImportError:
        return False
    return True


def peers(x, by_torch: Callable, compiled: bool, packages: bool) -> dict[str, Callable]:
    """The calls of all peers by name, with flex_attention if `compiled`, and with the installed packages for GPUs if
    `packages`. Their first call does their preparations."""
    makers = {"flex_attention, contiguous": flex} if compiled else {}
    if packages and x.size.rows == 1 and installed("flash_attn"):
        makers["flash-attn, pages of 256"] = flash_attn
    if packages and installed("flashinfer"):
        makers["FlashInfer"] = flash_infer

    def later(make):
        made = []

        def call(turn):
            if not made:
                made.append(make(x))
            return made[0](turn)

        return call

    return {"torch SDPA, contiguous": by_torch} | {name: later(make) for name, make in makers.items()}
