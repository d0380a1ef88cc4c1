"""The folder for what is worth keeping between runs: fetched models, measured costs, what was learnt of a draft."""

import errno
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import filelock

log = logging.getLogger(__name__)


def home_folder() -> Path | None:
    """Where the cache belongs, whether it can be used or not: $XDG_CACHE_HOME/ssd, or else ~/.cache/ssd. None where
    there is no home."""
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(folder) / "ssd" if os.path.isabs(folder) else None


def cache_folder() -> Path:
    """A folder that can be written: home_folder, or where that cannot be used a temporary one, told of in one line."""
    return usable(home_folder())


@lru_cache  # one line a process
def usable(folder: Path | None) -> Path:
    reason = refused(folder) if folder else "there is no home"
    return folder if reason is None else in_place_of(folder or "~/.cache/ssd", reason)


def in_place_of(folder: Path | str, reason: str) -> Path:
    """A temporary folder of this user. A cache costs time only."""
    instead = Path(tempfile.gettempdir()) / f"ssd-{os.getuid()}"
    if instead == folder or refused(instead) or instead.stat().st_uid != os.getuid():
        instead = Path(tempfile.mkdtemp(prefix="ssd-"))
    log.warning("the cache %s cannot be used (%s): %s takes its place", folder, reason, instead)
    return instead


def refused(folder: Path) -> str | None:
    """Why a folder cannot be written, None where it can."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as e:
        return e.strerror or str(e)
    return None


def is_folder(path: Path) -> bool:
    """Whether a folder is there and can be reached."""
    try:
        return path.is_dir()
    except OSError:
        return False


def made_once(path: Path, make: Callable[[Path], object], needed: int, name: str) -> Path:
    """A file or folder of the cache. If it is not there, make(making) writes it elsewhere, and then it is renamed.

    It appears whole or not at all, whatever interrupts its making, and is made once however many processes ask. needed:
    bytes on disk; name: what errors call it. Raises OSError (one sentence) where there is no room, and what make does.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(path.with_name(f"{path.name}.lock")):
            for stale in path.parent.glob(f"{path.name}.making-*"):  # left by a process that was killed
                shutil.rmtree(stale)
            if not path.exists():
                if shutil.disk_usage(path.parent).free < needed:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                with tempfile.TemporaryDirectory(prefix=f"{path.name}.making-", dir=path.parent) as folder:
                    make(making := Path(folder) / path.name)
                    making.rename(path)
    except OSError as e:
        if e.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OSError(f"no room on disk for {name}: {needed >> 20} MiB needed in {path.parent}") from None
        raise
    return path
