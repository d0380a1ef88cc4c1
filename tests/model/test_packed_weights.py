"""Packed weights that are kept: the same bits as packing anew, and no file but the right one is ever used."""

import hashlib
import logging
import os
import re
import threading
import time
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType as Type
from gguf_helpers import FAMILIES, write_pair

from ssd.model import Llama, packed_weights
from ssd.model.draft import Draft
from ssd.model.packed_weights import make_room, named

MIXED = {"down_proj": Type.Q6_K, "v_proj": Type.Q6_K, "lm_head": Type.Q4_0}


@pytest.fixture
def source(tmp_path, monkeypatch):
    """A GGUF file that is worth keeping; its packed weights go to a folder of the test."""
    monkeypatch.setattr(packed_weights, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(packed_weights, "WORTH_KEEPING", 1)
    return write_pair(tmp_path / "model", Type.Q4_K, FAMILIES["llama, biases"], types=MIXED)[0]


@pytest.fixture
def never_pack(monkeypatch):
    """A function after which nothing can be packed any more."""

    def refuse():
        def fail(*args, **more):
            pytest.fail("the weights were packed again")

        for module in ("llama", "draft"):
            monkeypatch.setattr(f"ssd.model.{module}.load_weights", fail)

    return refuse


def kept(tmp_path):
    return sorted((tmp_path / "cache/packed").iterdir())


def assert_same(a, b):
    a, b = dict(named(a.weights)), dict(named(b.weights))
    assert a.keys() == b.keys() and len(a) > 10
    for name in a:
        assert a[name].dtype == b[name].dtype and torch.equal(a[name], b[name]), name


@pytest.mark.parametrize("dtype", ["q4", "bf16", "int8", "fp32"])
def test_a_second_load_reads_what_the_first_one_packed(source, tmp_path, never_pack, dtype):
    first = Llama.load(source, dtype)
    (path,) = kept(tmp_path)
    assert path.name.startswith(f"v{packed_weights.VERSION}-{dtype}-{torch.ops.ssd.isa()}-")
    never_pack()
    assert_same(first, Llama.load(source, dtype))
    assert_same(first, Draft.load(source, first, dtype))
    assert kept(tmp_path) == [path]


def test_what_packs_fast_or_comes_from_a_folder_is_not_kept(source, tmp_path, monkeypatch):
    Llama.load(source.parent, "bf16")  # floats
    monkeypatch.setattr(packed_weights, "WORTH_KEEPING", 1 << 20)
    Llama.load(source, "q4")
    monkeypatch.setattr(packed_weights, "WORTH_KEEPING", 1)
    blocks = write_pair(tmp_path / "blocks", Type.Q8_0, FAMILIES["llama"])[0]
    Llama.load(blocks, "q4")
    assert not (tmp_path / "cache").exists()
    Llama.load(blocks, "bf16")
    assert len(kept(tmp_path)) == 1


def damage(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "harm, reason",
    [
        (lambda path: damage(path, -1), "checksums"),
        (lambda path: damage(path, path.stat().st_size // 2), "checksums"),
        (lambda path: damage(path, 10), "checksums|header"),
        (lambda path: os.truncate(path, path.stat().st_size - 1), "truncated"),
        (lambda path: os.truncate(path, 5), "truncated"),
        (lambda path: path.write_bytes(b"\x02\0\0\0\0\0\0\0{}"), "checksums"),
        (lambda path: (path.unlink(), path.mkdir()), "Is a directory"),
    ],
)
def test_a_damaged_file_is_noticed_and_made_anew(source, tmp_path, caplog, harm, reason):
    first = Llama.load(source, "q4")
    (path,) = kept(tmp_path)
    good = path.read_bytes()
    harm(path)
    with caplog.at_level(logging.WARNING):
        assert_same(first, Llama.load(source, "q4"))
    message = caplog.messages[0]
    assert "\n" not in message and path.name in message
    if path.is_file():
        assert path.read_bytes() == good
    assert re.search(reason, message), message


def test_everything_that_the_bytes_depend_on_has_a_file_of_its_own(source, tmp_path, isas, monkeypatch):
    torch.ops.ssd.set_isa("portable")
    model = Llama.load(source, "q4")
    names = {path.name for path in kept(tmp_path)}

    def added():
        new = {path.name for path in kept(tmp_path)} - names
        names.update(new)
        return len(new)

    Llama.load(source, "q4")
    assert added() == 0
    for isa in isas[1:]:
        torch.ops.ssd.set_isa(isa)
        Llama.load(source, "q4")
        assert added() == 1
    Llama.load(source, "int8")
    assert added() == 1
    monkeypatch.setattr(packed_weights, "VERSION", packed_weights.VERSION + 1)
    Llama.load(source, "q4")
    assert added() == 1
    about = source.stat()
    damage(source, -20)  # another weight in a file of the same name, size and time
    os.utime(source, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert not torch.equal(Llama.load(source, "q4").weights.lm_head, model.weights.lm_head) and added() == 1


def test_a_cache_that_cannot_be_written_costs_one_line(source, tmp_path, caplog, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(packed_weights, "write_as_they_are", full)
    model = Llama.load(source, "q4")
    assert kept(tmp_path) == [] and len(caplog.messages) == 1 and "No space left on device" in caplog.messages[0]
    monkeypatch.undo()
    assert_same(model, Llama.load(source, "q4"))


@pytest.mark.parametrize("limit", ["MOST", "disk"])
def test_what_is_too_large_is_not_kept(source, tmp_path, monkeypatch, limit):
    if limit == "MOST":
        monkeypatch.setattr(packed_weights, "MOST", 1000)
    else:
        usage = packed_weights.shutil.disk_usage(tmp_path)._replace(free=1000)
        monkeypatch.setattr(packed_weights.shutil, "disk_usage", lambda path: usage)
    Llama.load(source, "q4")
    assert kept(tmp_path) == []


def test_the_files_unused_for_longest_make_room(tmp_path):
    now = time.time()
    for name, age in (("a", 50), ("b", 40), ("c", 30), ("d", 20), ("new.making", 10), ("old.making", 9999)):
        (tmp_path / name).write_bytes(bytes(100))
        os.utime(tmp_path / name, (now - age, now - age))
    make_room(tmp_path, 250)
    assert sorted(os.listdir(tmp_path)) == ["c", "d", "new.making"]


def test_a_file_that_is_used_counts_as_new(source, tmp_path):
    Llama.load(source, "q4")
    (path,) = kept(tmp_path)
    os.utime(path, (1, 1))
    Llama.load(source, "q4")
    assert time.time() - path.stat().st_mtime < 1000


def test_threads_that_load_at_once(source, tmp_path):
    models = []
    threads = [threading.Thread(target=lambda: models.append(Llama.load(source, "q4"))) for _ in range(4)]
    for step in (threading.Thread.start, threading.Thread.join):
        for thread in threads:
            step(thread)
    assert len(models) == 4 and len(kept(tmp_path)) == 1
    for model in models:
        assert_same(model, models[0])


GOLDEN = {"q4": "cab5e8334c3ca5ea", "int8": "173c67e75232a1a8", "bf16": "ca7381bc6594f5b9"}


@pytest.mark.parametrize("dtype", GOLDEN)
def test_the_bytes_are_those_of_this_version(source, dtype, isas):
    """Where this fails on purpose, raise VERSION with the new hash: files of earlier versions hold other bytes."""
    for isa in isas:
        torch.ops.ssd.set_isa(isa)
        digest = hashlib.sha256()
        for name, tensor in named(Llama.load(source, dtype).weights):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy())
        assert (packed_weights.VERSION, digest.hexdigest()[:16]) == (1, GOLDEN[dtype])
