"""What others make of the same attention: torch SDPA with a mask, flex_attention, flash-attn, FlashInfer.

Each makes the call for a turn, whose result has the order of [B, T, Hq, D]. Those without pages are given contiguous
K and V for nothing.
"""

from collections.abc import Callable
from importlib import import_module

import torch
import torch.nn.functional as F

from ..shapes import PAGE


def sdpa(x):
    """The heads of a group as rows, several times as fast as enable_gqa, which repeats K and V; the mask as a bias
    in rows of whole 32 bytes, as the kernels want it; one row sees all and needs none."""
    size, kv_heads = x.size, x.size.model.kv_heads
    q = x.q.to(x.k.dtype).unflatten(0, (size.batch, size.rows)).unflatten(2, (kv_heads, -1))  # [B, T, Hkv, G, D]
    group, query = q.shape[3], q.permute(0, 2, 3, 1, 4).flatten(2, 3).contiguous()  # [B, Hkv, G T, D]
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

    size, seen = x.size, x.seen
    query = x.q.to(x.k.dtype).unflatten(0, (size.batch, size.rows)).transpose(1, 2).contiguous()
    mask = create_block_mask(lambda b, h, i, j: seen[i, j], None, None, size.rows, size.length, device=x.device)
    compiled = torch.compile(flex_attention)

    def call(turn):
        k, v = x.dense[turn % len(x.dense)]
        return compiled(query, k, v, block_mask=mask, scale=x.scale, enable_gqa=True).transpose(1, 2)

    return call


def flash_attn(x):
    """flash_attn_with_kvcache has no trees; one row is a tree and a chain. Its pages have 256 tokens."""
    from flash_attn import flash_attn_with_kvcache

    batch, length = x.size.batch, x.size.length
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
    """On the very pages of tree attention, with its custom mask; at one row its decoding on tensor cores. What it plans
    on the host before a launch is not timed."""
    import flashinfer

    size, m, q = x.size, x.size.model, x.q.to(x.k.dtype)
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
    """Calls by name; flex_attention where asked for, the packages for GPUs that are installed. What they prepare is
    prepared by their first call."""
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
