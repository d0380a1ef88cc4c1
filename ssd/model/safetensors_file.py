"""Safetensors files, read and written one tensor at a time so that no more than one is in memory.

Format: 8 bytes length of the header, little-endian; the header, JSON {name: {dtype, shape, data_offsets}}; the data.
"""

import json
import math
import mmap
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch

from .ring import Ring

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}
BYTES = {"U8": torch.uint8}
ITEM_BYTES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2}


class SafetensorsFile:
    """One safetensors file. Raises ValueError that names the file when it is truncated or its header is corrupt."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        size = self.path.stat().st_size
        with open(self.path, "rb") as f:
            length = int.from_bytes(f.read(8), "little")
            if size < 8 or length > size - 8:
                raise ValueError(f"{path} is truncated or no safetensors file: {size} bytes do not hold its header")
            header = f.read(length)
        try:
            self.entries = json.loads(header)
            self.metadata = self.entries.pop("__metadata__", {})
            ends = [self._check(**entry) for entry in self.entries.values()]
        except (ValueError, TypeError, AttributeError) as e:
            raise ValueError(f"{path} has a corrupt safetensors header: {e}") from None
        self.start = 8 + length
        if self.start + max(ends, default=0) > size:
            raise ValueError(f"{path} is truncated: it has {size} bytes, its header needs {self.start + max(ends)}")

    @staticmethod
    def _check(dtype: str, shape: list[int], data_offsets: list[int]) -> int:
        begin, end = data_offsets
        if any(type(n) is not int or n < 0 for n in [*shape, begin, end]):
            raise ValueError("sizes and offsets must be whole numbers of at least 0")
        wanted = math.prod(shape) * ITEM_BYTES.get(dtype, 1)
        if end - begin != wanted:
            raise ValueError(f"{end - begin} bytes for {dtype} {shape}, wanted {wanted}")
        return end

    def shape(self, name: str) -> list[int]:
        return self.entries[name]["shape"]

    def _entry(self, name: str, dtypes: dict[str, torch.dtype]) -> tuple[torch.dtype, list[int], int, int]:
        """dtype, shape, first byte and the one after the last. Raises ValueError on a dtype that is not in dtypes."""
        stored, shape, (begin, end) = (self.entries[name][k] for k in ("dtype", "shape", "data_offsets"))
        if stored not in dtypes:
            raise ValueError(f"tensor {name} in {self.path}: dtype {stored}, wanted one of {', '.join(dtypes)}")
        return dtypes[stored], shape, begin, end

    def send(self, name: str, ring: Ring) -> torch.Tensor:
        """A tensor on the device of a ring, its bytes as stored. Raises ValueError as `read` does."""
        dtype, shape, begin, _ = self._entry(name, DTYPES)
        with open(self.path, "rb") as f:
            f.seek(self.start + begin)

            def fill(part):
                if f.readinto(part) < len(part):
                    raise ValueError(f"{self.path} became shorter while it was read")

            return ring.send(shape, dtype, fill)

    def layout(self, name: str) -> tuple[list[int], torch.dtype]:
        """Shape and dtype of a tensor. Raises ValueError unless it holds floats or bytes."""
        dtype, shape, _, _ = self._entry(name, DTYPES | BYTES)
        return shape, dtype

    def read_into(self, name: str, tensor: torch.Tensor) -> None:
        """Read a tensor into a contiguous one of its layout. Raises ValueError where the file became shorter."""
        with open(self.path, "rb") as f:
            f.seek(self.start + self.entries[name]["data_offsets"][0])
            if f.readinto(raw_bytes(tensor)) < tensor.nbytes:
                raise ValueError(f"{self.path} became shorter while it was read")

    def read(self, name: str, dtypes: dict[str, torch.dtype] = DTYPES) -> torch.Tensor:
        """A tensor on its own private mapping of the file. Raises ValueError on a dtype that is not in dtypes."""
        dtype, shape, begin, end = self._entry(name, dtypes)
        if begin == end:
            return torch.empty(shape, dtype=dtype)
        skip = (self.start + begin) % mmap.ALLOCATIONGRANULARITY
        with open(self.path, "rb") as f:
            view = mmap.mmap(f.fileno(), skip + end - begin, access=mmap.ACCESS_COPY, offset=self.start + begin - skip)
        raw = torch.frombuffer(view, dtype=torch.uint8, offset=skip)
        if raw.data_ptr() % dtype.itemsize:
            raw = raw.clone()
        return raw.view(dtype).view(shape)


def raw_bytes(tensor: torch.Tensor) -> np.ndarray:
    """The bytes of a contiguous tensor."""
    return tensor.reshape(-1).view(torch.uint8).numpy()


def header_of(sizes: dict[str, tuple[str, Iterable[int]]], metadata: dict[str, str]) -> bytes:
    """The beginning of a file, up to its data. sizes: of each tensor its dtype's name and its shape."""
    header, at = {"__metadata__": metadata}, 0
    for name, (dtype, shape) in sizes.items():
        size = ITEM_BYTES.get(dtype, 1) * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    return len(encoded).to_bytes(8, "little") + encoded


def write_safetensors(path: str | Path, shapes: dict[str, tuple[int, ...]], tensors: Iterable[np.ndarray]) -> None:
    """Write tensors as float32, one at a time in the order of `shapes`. Raises ValueError on another shape."""
    with open(path, "wb") as f:
        f.write(header_of({name: ("F32", shape) for name, shape in shapes.items()}, {"format": "pt"}))
        for (name, shape), tensor in zip(shapes.items(), tensors, strict=True):
            if tensor.shape != tuple(shape):
                raise ValueError(f"tensor {name}: got shape {list(tensor.shape)}, wanted {list(shape)}")
            f.write(np.ascontiguousarray(tensor, np.float32).data)


def write_as_they_are(path: str | Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> None:
    """Write contiguous CPU tensors of floats or bytes in their own dtypes."""
    names = {dtype: name for name, dtype in (DTYPES | BYTES).items()}
    with open(path, "wb") as f:
        f.write(header_of({name: (names[t.dtype], t.shape) for name, t in tensors.items()}, metadata))
        for tensor in tensors.values():
            f.write(raw_bytes(tensor))
