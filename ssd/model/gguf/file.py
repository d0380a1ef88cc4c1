"""GGUF files, versions 2 and 3: metadata, and tensors as views of the mapped file.

The header is read here, since the package gguf takes seconds for a vocabulary of 150,000; its tables give the layout
of each type of tensor. Format: magic, version, counts; metadata as key, type, value; for each tensor its name,
dimensions (the fastest first), type and offset; the data.
"""

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9


@dataclass(frozen=True)
class GGUFTensor:
    shape: tuple[int, ...]  # rows first
    type: GGMLQuantizationType
    data: np.ndarray  # uint8 [rows, bytes of a row], or [bytes] of a vector


class GGUFFile:
    """A GGUF file: path, meta {key: value}, tensors {name: GGUFTensor}.

    Raises ValueError (one sentence that names the file) when it is truncated, has another format or version, is one of
    several parts, or holds a tensor of an unknown type.
    """

    def __init__(self, path: str | Path):
        self.path, self._at = Path(path), 0
        with open(self.path, "rb") as f:
            if f.read(4) != b"GGUF":
                raise ValueError(f"{path} is no GGUF file: it does not begin with 'GGUF'")
            self._bytes = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
        try:
            self._read()
        except (struct.error, UnicodeDecodeError, IndexError, RecursionError) as e:
            raise ValueError(f"{path} is truncated or has a corrupt header: {e}") from None

    def _read(self) -> None:
        self._at = 4
        if (version := self._scalar("I")) not in (2, 3):
            raise ValueError(f"{self.path}: version {version} of GGUF is not supported, wanted 2 or 3, little-endian")
        n_tensors, n_values = self._scalar("Q"), self._scalar("Q")
        self.meta = {}
        for _ in range(n_values):
            key = self._string()
            self.meta[key] = self._value(self._scalar("I"))
        if (parts := self.meta.get("split.count", 1)) not in (0, 1):
            raise ValueError(f"{self.path} is one of {parts} parts: merge them first (llama-gguf-split --merge)")
        infos = [self._tensor_info() for _ in range(n_tensors)]
        alignment = self.meta.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise ValueError(f"{self.path}: general.alignment is {alignment!r}, wanted a whole number of at least 1")
        start = -(-self._at // alignment) * alignment
        self.tensors = {}
        for name, *info in infos:
            if name in self.tensors:
                raise ValueError(f"{self.path} holds two tensors {name}")
            self.tensors[name] = self._tensor(name, start, *info)

    def _scalar(self, code: str):
        (value,) = struct.unpack_from("<" + code, self._bytes, self._at)
        self._at += struct.calcsize("<" + code)
        return value

    def _take(self, size: int) -> bytes:
        if size > len(self._bytes) - self._at:
            raise IndexError(f"{size} bytes wanted at {self._at} of {len(self._bytes)}")
        self._at += size
        return self._bytes[self._at - size : self._at]

    def _string(self) -> str:
        return self._take(self._scalar("Q")).decode()

    def _value(self, kind: int):
        if kind == STRING:
            return self._string()
        if kind == ARRAY:
            element, count = self._scalar("I"), self._scalar("Q")
            if element in SCALARS:
                dtype = np.dtype("<" + SCALARS[element])
                return np.frombuffer(self._take(count * dtype.itemsize), dtype).tolist()
            return [self._value(element) for _ in range(count)]
        if kind not in SCALARS:
            raise IndexError(f"a value of type {kind}")
        return self._scalar(SCALARS[kind])

    def _tensor_info(self) -> tuple:
        name, dims = self._string(), self._scalar("I")
        shape = tuple(self._scalar("Q") for _ in range(dims))[::-1]
        return name, shape, self._scalar("I"), self._scalar("Q")

    def _tensor(self, name: str, start: int, shape: tuple[int, ...], type: int, offset: int) -> GGUFTensor:
        try:
            kind = GGMLQuantizationType(type)
        except ValueError:
            raise ValueError(f"tensor {name} in {self.path}: type {type} is unknown") from None
        values, size = GGML_QUANT_SIZES[kind]
        if not 1 <= len(shape) <= 4 or not all(shape) or shape[-1] % values:
            raise ValueError(f"tensor {name} in {self.path}: shape {list(shape)} does not fit blocks of {values}")
        row = shape[-1] // values * size
        total, begin = math.prod(shape[:-1]) * row, start + offset
        if begin + total > len(self._bytes):
            raise ValueError(
                f"{self.path} is truncated: it has {len(self._bytes)} bytes, its header needs {begin + total}"
            )
        data = np.frombuffer(self._bytes, np.uint8, total, begin)
        return GGUFTensor(shape, kind, data.reshape(*shape[:-1], row))
