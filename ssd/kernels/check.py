import torch


def check_dtypes(dtype: torch.dtype, **tensors: torch.Tensor | None) -> None:
    """Raise TypeError that names a tensor of another dtype; a kernel would read nonsense through its pointer."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.dtype != dtype:
            raise TypeError(f"{name}: got dtype {tensor.dtype}, wanted {dtype}")
