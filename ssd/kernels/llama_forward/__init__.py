"""A whole forward pass of a Llama as one operator (CPU): the layer loop runs in C++ on the kept threads."""

import torch

from .. import library  # noqa: F401

llama_forward = torch.ops.ssd.llama_forward


@torch.library.register_fake("ssd::llama_forward")
def _(ids, positions, slots, row_offsets, prefix_lens, page_table, mask, logit_rows, k_cache, v_cache, embedding, *_):
    return embedding.new_empty(logit_rows.shape[0], embedding.shape[0], dtype=torch.float32)
