import torch


def tree_attention(
    q, k_cache, v_cache, page_table, prefix_lens, row_offsets, mask=None, scale=1.0, softcap=0.0, return_lse=False
):
    """The CUDA C++ form, with the shapes of ssd.kernels.tree_attention; head_dim 64, 80, 96, 128 or 256, caches of
    bfloat16 or float16, rows of q and of the caches aligned to 16 bytes.

    The grid follows page_table's width: hand over no more columns than the longest request needs.
    """
    return torch.ops.ssd.cuda_tree_attention(
        q, k_cache, v_cache, page_table, prefix_lens, row_offsets, mask, scale, softcap, return_lse
    )


@torch.library.register_fake("ssd::cuda_tree_attention")
def _(q, k_cache, v_cache, page_table, prefix_lens, row_offsets, mask, scale, softcap=0.0, return_lse=False):
    return q.new_empty(q.shape), q.new_empty(q.shape[0] if return_lse else 0, q.shape[1], dtype=torch.float32)
