"""Memory that is free on a device."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from .cpu_quota import control_groups, read_text

GIB = 2**30


def free_memory(device: torch.device) -> int | None:
    """Bytes that a device has left, None where nobody says. What torch keeps for later tensors counts as left."""
    if device.type == "cpu":
        return host_memory()
    api = torch.get_device_module(device)
    api.empty_cache()
    return api.mem_get_info(device)[0]


def host_memory(root: str | Path = "/") -> int | None:
    """Bytes that this process may still take without swapping: those of the system, or fewer in a control group with a
    limit. root: of the file system, for tests."""
    root = Path(root)
    left = [1024 * n for n in _numbers(read_text(root / "proc/meminfo"), "MemAvailable:")]
    for folder, version in control_groups(root, "memory"):
        limit, used, files = {
            1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
            2: ("memory.max", "memory.current", "inactive_file"),
        }[version]
        limit, used = read_text(folder / limit).strip(), read_text(folder / used).strip()
        if limit.isdecimal() and used.isdecimal():
            left.append(int(limit) - int(used) + sum(_numbers(read_text(folder / "memory.stat"), files)))
    return max(0, min(left)) if left else None


def _numbers(text: str, name: str) -> list[int]:
    return [int(line.split()[1]) for line in text.splitlines() if line.split()[:1] == [name]]


def ran_out(error: Exception) -> bool:
    """Whether an error says that memory is gone; torch has no class of its own for the host's."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(error)


@contextmanager
def weights_fit(model: str, device: torch.device) -> Iterator[None]:
    """While the weights of a model are loaded: without memory for them, MemoryError says so in a sentence."""
    try:
        yield
    except (MemoryError, RuntimeError) as e:
        if not ran_out(e):
            raise
        left = free_memory(device)
        free = "" if left is None else f", where {left / GIB:.2f} GiB are left"
        raise MemoryError(
            f"no memory for the weights of the {model} on {device}{free}: choose a smaller model, a smaller format of "
            "its weights, or another device"
        ) from e
