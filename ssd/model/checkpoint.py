"""The tensors of a checkpoint, found and checked.

For the CPU they are views of the file. For a device their bytes go there as stored, through a ring of buffers, and
their values are checked there.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from .ring import Ring
from .safetensors_file import SafetensorsFile
from .values import read_json


class Checkpoint:
    """The tensors of a folder with one or many safetensors files.

    Raises ValueError that names the folder, file or tensor: no safetensors, an index that cannot be followed, a
    truncated or corrupt file; `tensor`: a missing tensor, another shape than expected, NaN or infinite values.
    """

    bytes_to_convert = 0  # weights whose packing takes long, since their format becomes another one

    def __init__(self, folder: str | Path, rename: Callable[[str], str] = str, ring: Ring | None = None):
        """rename: maps a name in the files to the name used here; ring: sends tensors to its device."""
        self.folder, self.ring, self.unchecked = Path(folder), ring, []
        index = self.folder / "model.safetensors.index.json"
        shard_of = weight_map(index) if index.is_file() else None
        self.files = {path.name: SafetensorsFile(path) for path in self._paths(index, shard_of)}
        self.where = {}
        for stored, file in self._stored(shard_of):
            if (name := rename(stored)) in self.where:
                raise ValueError(f"tensor {name} is both in {self.where[name][0].path} and in {file.path}")
            self.where[name] = (file, stored)

    def _stored(self, shard_of: dict[str, str] | None) -> Iterator[tuple[str, SafetensorsFile]]:
        """Every tensor with its file; with an index only those that it names, in the shards that it names."""
        for file in self.files.values():
            for name in file.entries:
                if shard_of is None or shard_of.get(name) == file.path.name:
                    yield name, file

    def _paths(self, index: Path, shard_of: dict[str, str] | None) -> list[Path]:
        if shard_of is not None:
            paths = [self.folder / name for name in sorted(set(shard_of.values()))]
        elif (single := self.folder / "model.safetensors").is_file():
            paths = [single]
        else:
            paths = sorted(self.folder.glob("*.safetensors"))
        if not paths:
            raise ValueError(f"no *.safetensors in {self.folder}: convert the weights to safetensors first")
        for path in paths:
            if not path.is_file():
                raise ValueError(f"{path} is missing, and {index.name} names it")
        return paths

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        if name not in self.where:
            raise ValueError(f"tensor {name} is missing in {self.folder}")
        file, stored = self.where[name]
        if file.shape(stored) != list(shape):
            raise ValueError(
                f"tensor {stored} in {file.path}: got shape {file.shape(stored)}, wanted {list(shape)} by its config"
            )

    def tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """The checked tensor in the file's dtype: a view of the file, or with a ring a tensor on its device.

        There the values are checked by check_values, so that the host need not wait for every tensor.
        """
        self.check(name, shape)
        file, stored = self.where[name]
        if self.ring:
            tensor = file.send(stored, self.ring)
            self.unchecked.append((stored, file, torch.stack(torch.aminmax(tensor)).isfinite().all()))
            return tensor
        tensor = file.read(stored)
        total = tensor.sum(dtype=torch.promote_types(tensor.dtype, torch.float32))  # fast, though it may overflow
        if not total.isfinite() and not tensor.isfinite().all():
            raise ValueError(f"tensor {stored} in {file.path} holds NaN or infinite values")
        return tensor

    def check_values(self) -> None:
        """Wait for all tensors sent so far; raise ValueError for one that holds NaN or infinite values."""
        sent, self.unchecked = self.unchecked, []
        finite = torch.stack([flag for _, _, flag in sent]).tolist() if sent else []
        for (stored, file, _), good in zip(sent, finite, strict=True):
            if not good:
                raise ValueError(f"tensor {stored} in {file.path} holds NaN or infinite values")

    def matrices(self, names: list[str], shapes: list[tuple[int, ...]]) -> list[torch.Tensor]:
        """Checked weights to pack as one: floats [N, K], or blocks of one GGUF format, uint8 [N, K / 32, bytes]."""
        return [self.tensor(*pair) for pair in zip(names, shapes, strict=True)]


def weight_map(index: Path) -> dict[str, str]:
    """The file of each tensor by an index of shards. Raises ValueError that names the index."""

    def is_name(value):
        return isinstance(value, str) and Path(value).name == value and value.isprintable() and len(value) < 256

    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not all(map(is_name, names.values())):
        raise ValueError(f"{index}: weight_map must give the file name of every tensor")
    return names
