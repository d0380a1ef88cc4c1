"""Packed weights of GGUF files, kept in the cache folder: to convert some formats takes half a minute a gigabyte.

A file of packed weights is a safetensors file named by all that its bytes depend on. One that is missing, damaged or of
another version costs time, never an answer. They are read into memory on huge pages rather than mapped, since every
token reads them all.
"""

import hashlib
import logging
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import fields
from pathlib import Path

import torch

from .cache_folder import cache_folder
from .checkpoint import Checkpoint
from .config import LlamaConfig
from .memory import Arena
from .safetensors_file import SafetensorsFile, raw_bytes, write_as_they_are
from .weights import LayerWeights, Weights

VERSION = 1  # to be raised whenever the same file packs to other bytes
WORTH_KEEPING = 128 << 20  # bytes to convert
MOST = 8 << 30  # bytes of all files; the one unused for longest goes first
ABANDONED = 3600  # seconds after which a file that is still being made belongs to nobody
PART = 64 << 20  # bytes that a thread hashes at a time

log = logging.getLogger(__name__)


def kept_weights(checkpoint: Checkpoint, config: LlamaConfig, dtype: str, load: Callable[[], Weights]) -> Weights:
    """What load() returns, the packed weights of a checkpoint for the CPU, from a file of the cache if it is there.

    The file is written where packing takes long. load has to depend on nothing but the other arguments.
    """
    if checkpoint.ring or checkpoint.bytes_to_convert < WORTH_KEEPING:
        return load()
    folder = cache_folder() / "packed"
    path = folder / file_name(checkpoint.path, config, dtype)
    try:
        weights = read(path, config.num_layers)
        os.utime(path)  # the time of its last use
        return weights
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as e:
        log.warning("%s cannot be used and is made anew: %s", path, e)
    weights = load()
    try:
        keep(path, weights)
    except OSError as e:
        log.warning("%s cannot be written (%s): later runs pack anew", path, e.strerror or e)
    return weights


def file_name(source: Path, config: LlamaConfig, dtype: str) -> str:
    """Version, format, instruction set, and a hash of the source and of the configuration it is read with."""
    key = hashlib.sha256(repr((hash_of(source), config)).encode()).hexdigest()[:32]
    return f"v{VERSION}-{dtype}-{torch.ops.ssd.isa()}-{key}.safetensors"


def hash_of(path: Path) -> str:
    """The SHA-256 of the SHA-256s of a file's parts, which threads hash side by side."""

    def part(begin):
        digest, chunk = hashlib.sha256(), bytearray(1 << 20)
        with open(path, "rb") as f:
            f.seek(begin)
            for _ in range(0, PART, len(chunk)):
                digest.update(memoryview(chunk)[: f.readinto(chunk)])
        return digest.digest()

    return hashlib.sha256(b"".join(side_by_side(part, range(0, path.stat().st_size, PART)))).hexdigest()


def side_by_side(call: Callable, items) -> list:
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return list(pool.map(call, items))


def named(weights: Weights) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor by the name that it has in a file."""
    yield from (("embedding", weights.embedding), ("lm_head", weights.lm_head), ("norm", weights.norm))
    for i, layer in enumerate(weights.layers):
        yield from ((f"{i}.{name}", tensor) for name, tensor in vars(layer).items() if tensor is not None)


def read(path: Path, num_layers: int) -> Weights:
    """The weights in a file. Raises OSError where it cannot be read, ValueError where it is damaged."""
    file, arena = SafetensorsFile(path), Arena()
    places = {name: arena.empty(*file.layout(name)) for name in file.entries}

    def fill(name):
        file.read_into(name, places[name])
        return checksum(places[name])

    checksums = dict(zip(places, side_by_side(fill, places), strict=True))
    if not checksums or checksums != file.metadata:
        raise ValueError("its checksums are not those of its tensors")
    names = [field.name for field in fields(LayerWeights)]
    layers = [LayerWeights(**{name: places.get(f"{i}.{name}") for name in names}) for i in range(num_layers)]
    return Weights(places["embedding"], layers, places["norm"], places["lm_head"])


def checksum(tensor: torch.Tensor) -> str:
    kind = zlib.crc32(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    return f"{zlib.crc32(raw_bytes(tensor), kind):08x}"


def keep(path: Path, weights: Weights) -> None:
    """Write the file, whole or not at all, and remove others that leave no room. Raises OSError."""
    tensors = dict(named(weights))
    size = sum(t.nbytes for t in tensors.values())
    path.parent.mkdir(parents=True, exist_ok=True)
    if size > MOST or size > shutil.disk_usage(path.parent).free // 2:
        return log.info("%s is not kept: it would take %d MiB", path, size >> 20)
    make_room(path.parent, MOST - size)
    handle, making = tempfile.mkstemp(suffix=".making", dir=path.parent)
    os.close(handle)
    try:
        write_as_they_are(making, tensors, {name: checksum(tensor) for name, tensor in tensors.items()})
        os.replace(making, path)
    except BaseException:
        os.unlink(making)
        raise


def make_room(folder: Path, most: int) -> None:
    """Remove what was abandoned, then the files unused for longest, until the rest takes no more than `most` bytes."""
    found, total = [], 0
    for file in folder.iterdir():
        with suppress(FileNotFoundError):  # another process removed it
            found.append((file, file.stat()))
    for file, about in sorted(found, key=lambda pair: -pair[1].st_mtime):
        making = file.suffix == ".making"
        if making and time.time() - about.st_mtime < ABANDONED:
            continue
        total += about.st_size
        if making or total > most:
            file.unlink(missing_ok=True)
