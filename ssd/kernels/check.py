import torch


def check_dtypes(dtype: torch.dtype, **tensors: torch.Tensor | None) -> None:
    """Raises TypeError that names the tensor of another dtype; a form that trusts its pointers would read nonsense."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.dtype != dtype:
            raise TypeError(f"{name}: got dtype {tensor.dtype}, wanted {dtype}")
