import torch


def kv_copy(k_cache, v_cache, sources, targets):
    """The CUDA C++ form, as ssd.kernels.kv_copy; a slot's heads must take a multiple of 16 bytes. Any number of moves."""
    torch.ops.ssd.cuda_kv_copy(k_cache, v_cache, sources, targets)


@torch.library.register_fake("ssd::cuda_kv_copy")
def _(k_cache, v_cache, sources, targets):
    return None
