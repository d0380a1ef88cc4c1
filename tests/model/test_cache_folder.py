"""A cache that cannot be reached costs time, never an answer, and one line says where it would have been."""

import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ssd.model import cache_folder as module
from ssd.model import hub
from ssd.model.cache_folder import cache_folder, usable
from ssd.runtime.cache_files import write

ROOT = Path(__file__).parents[2]
NOBODY = 54321


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    usable.cache_clear()
    monkeypatch.setattr(module.tempfile, "gettempdir", lambda: str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    yield
    usable.cache_clear()


def lines(caplog):
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def test_the_cache_is_where_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg/ssd" and cache_folder().is_dir()
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home/.cache/ssd"


def test_a_cache_in_a_place_that_is_a_file_is_told_of_in_one_line(monkeypatch, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    folder = cache_folder()
    assert folder == cache_folder() == tmp_path / f"temporary/ssd-{os.getuid()}"
    (line,) = lines(caplog)
    assert str(tmp_path / "file/ssd") in line and str(folder) in line


def test_without_a_home_a_temporary_folder_takes_its_place(monkeypatch, caplog):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(module.os.path, "expanduser", lambda path: path)
    assert "temporary" in str(cache_folder()) and "there is no home" in lines(caplog)[0]


def test_a_temporary_folder_of_another_user_is_left_alone(monkeypatch, tmp_path, caplog):
    (tmp_path / f"temporary/ssd-{os.getuid()}").write_text("not a folder")
    monkeypatch.setattr(module, "home_folder", lambda: None)
    made = []
    monkeypatch.setattr(module.tempfile, "mkdtemp", lambda prefix: made.append(prefix) or str(tmp_path))
    assert cache_folder() == tmp_path and made == ["ssd-"]


def test_a_default_target_that_can_be_read_is_used_from_a_cache_that_cannot_be_written(monkeypatch, tmp_path):
    (tmp_path / hub.DEFAULT_TARGET).mkdir()
    monkeypatch.setattr(hub, "home_folder", lambda: tmp_path)
    monkeypatch.setattr(hub, "cache_folder", lambda: pytest.fail("the cache is not needed"))
    assert hub.default_target() == tmp_path / hub.DEFAULT_TARGET


def test_a_file_of_another_user_in_the_cache_does_not_stop_the_default_target(monkeypatch, tmp_path, caplog):
    made = []

    def make(cache, folder, progress):
        if cache == tmp_path / "theirs":
            raise PermissionError(13, "Permission denied", str(cache / "wheel"))
        folder.mkdir()
        made.append(cache)

    (tmp_path / "theirs").mkdir()
    monkeypatch.setattr(hub, "home_folder", lambda: tmp_path / "theirs")
    monkeypatch.setattr(hub, "cache_folder", lambda: tmp_path / "theirs")
    monkeypatch.setattr(hub, "make_default_target", make)
    assert hub.default_target(progress=False).parent == made[0] and "temporary" in str(made[0])
    assert "Permission denied" in lines(caplog)[0]


def test_what_cannot_be_kept_is_lost_in_one_line(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    write(tmp_path / "file/costs.json", "{}")
    (line,) = lines(caplog)
    assert str(tmp_path / "file/costs.json") in line


@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("setpriv"), reason="needs root and setpriv")
def test_the_default_mode_answers_in_a_home_that_cannot_be_searched(tmp_path, tiny_folder):
    """From the command line; the home belongs to somebody else, and root's right to search it is taken away."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    os.chown(home, NOBODY, NOBODY)
    command = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search", sys.executable, "-m", "ssd.run", "Hi"]
    command += ["--target", tiny_folder, "--draft", tiny_folder, "--max-tokens", "40", "--ignore-eos"]
    environment = {k: v for k, v in os.environ.items() if k != "XDG_CACHE_HOME"} | {"HOME": str(home)}
    run = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert run.returncode == 0 and "Traceback" not in run.stderr, run.stderr
    assert run.stderr.count("cannot be used (Permission denied)") == 1, run.stderr
