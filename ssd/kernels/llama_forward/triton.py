"""The forward pass of a Llama, composed of the Triton forms. The residual stream is float32; inputs of products have
the dtype of norms and caches."""

import torch

from ..embedding.triton import embedding as embed
from ..linear.triton import linear, linear_swiglu
from ..norm.triton import rms_norm
from ..rope_append.triton import rope_append
from ..tree_attention.triton import attend, plan_attention

FIELDS = 12  # tensors of a layer


def llama_forward(
    ids, positions, slots, row_offsets, prefix_lens, page_table, mask, logit_rows, k_cache, v_cache, embedding, layers,
    norm, lm_head, cos, sin, heads, inner_size, eps, scale, vocab=None, hidden=None, hidden_norm=None,
    feature_layers=(),
):  # fmt: skip
    width, (num_kv_heads, head_dim) = embedding.shape[1], k_cache.shape[3:]
    embedded = embed(ids, embedding)  # [R, H]
    x = embedded if hidden is None else hidden
    stream = {0: x}
    queries = len(ids), heads, head_dim
    plan = plan_attention(queries, k_cache[0], page_table, prefix_lens, row_offsets, mask)  # of all layers
    for i, (k, v) in enumerate(zip(k_cache, v_cache, strict=True)):
        layer = (t if t.numel() else None for t in layers[FIELDS * i : FIELDS * (i + 1)])
        attention_norm, qkv, qkv_bias, o, o_bias, mlp_norm, gate_up, gate_up_bias, down, down_bias, *norms = layer
        if i == 0 and hidden is not None:
            y = torch.cat([rms_norm(embedded, attention_norm, eps), rms_norm(hidden, hidden_norm, eps)], 1)
        else:
            y = rms_norm(x, attention_norm, eps)
        y = linear(y, qkv, (heads + 2 * num_kv_heads) * head_dim, qkv_bias)
        q = rope_append(y, cos, sin, positions, slots, k, v, *norms, eps)  # [R, Hq, D]
        y, _ = attend(plan, q, k, v, scale)
        x = linear(y.flatten(1), o, width, o_bias, x)
        y = linear_swiglu(rms_norm(x, mlp_norm, eps), gate_up, 32 * -(-inner_size // 16), gate_up_bias)
        x = linear(y, down, width, down_bias, x)
        if i + 1 in feature_layers:
            stream[i + 1] = x
    logits = linear(rms_norm(x[logit_rows], norm, eps), lm_head, embedding.shape[0] if vocab is None else vocab)
    features = [stream[n] for n in feature_layers]
    return logits, torch.cat(features, 1) if features else x.new_empty(len(x), 0)
