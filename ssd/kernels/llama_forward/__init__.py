"""A whole forward pass of a Llama as one operator (CPU): the layer loop runs in C++ on the kept threads.

Returns logits float32 [len(logit_rows), vocab] (vocab: outputs of lm_head, by default as many as embeddings) and
features [R, len(feature_layers) H], the residual stream of every row after that many layers each. With hidden [R, H]
the first layer is that of a feature draft (EAGLE-3, Li et al., arXiv 2503.01840): hidden is the residual stream that
enters it, and its attention reads [norm(embedding), hidden_norm(hidden)], so its qkv has 2 H inputs.
"""

import torch

from .. import library  # noqa: F401

llama_forward = torch.ops.ssd.llama_forward


@torch.library.register_fake("ssd::llama_forward")
def _(
    ids, positions, slots, row_offsets, prefix_lens, page_table, mask, logit_rows, k_cache, v_cache, embedding, layers,
    norm, lm_head, cos, sin, heads, inner_size, eps, scale, vocab=None, hidden=None, hidden_norm=None,
    feature_layers=(),
):  # fmt: skip
    vocab = embedding.shape[0] if vocab is None else vocab
    logits = embedding.new_empty(logit_rows.shape[0], vocab, dtype=torch.float32)
    return logits, logits.new_empty(ids.shape[0], len(feature_layers) * embedding.shape[1])
