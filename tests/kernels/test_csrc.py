"""What the C++ and CUDA sources must keep to, read from their text."""

import re
from pathlib import Path

import pytest

CSRC = Path(__file__).parents[2] / "csrc"
KERNELS = [
    path
    for path in sorted(CSRC.rglob("*"))
    if path.is_relative_to(CSRC / "include")
    or (path.is_relative_to(CSRC / "cpu") and not path.is_relative_to(CSRC / "cpu/ops"))
    or (path.is_relative_to(CSRC / "cuda") and path.name != "ops.cu")
    if path.is_file()
]


def includes(path: Path, seen: set[Path]) -> set[str]:
    """Names of every header that path includes, itself or through headers of csrc."""
    seen.add(path)
    names = set(re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', path.read_text(), re.M))
    for name in list(names):
        for folder in (path.parent, CSRC, CSRC / "include"):
            header = (folder / name).resolve()
            if header.is_file() and header not in seen:
                names |= includes(header, seen)
    return names


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: str(path.relative_to(CSRC)))
def test_a_kernel_includes_nothing_of_torch(path):
    assert not {name for name in includes(path, set()) if re.match(r"(torch|ATen|c10|caffe2)/", name)}


def test_the_search_finds_torch_where_it_is():
    assert "ATen/core/Tensor.h" in includes(CSRC / "cpu/ops/kv_copy_ops.cpp", set())
    assert len(KERNELS) > 30


@pytest.mark.parametrize("name", ["include/ssd/spec_cache.h", "cuda/verify_swap.cuh"])
def test_lanes_meet_by_loads_and_stores_alone(name):
    """Host memory that a GPU has mapped over PCIe may have no atomic read-modify-write."""
    code = re.sub(r"//.*|/\*.*?\*/", "", (CSRC / name).read_text())
    assert not re.search(r"exchange|fetch_|atomic(Add|CAS|Exch|Max|Min|Or|And)", code)
    assert "store_release(" in code


@pytest.mark.parametrize("constant", ["kSpan", "kBlock"])
def test_what_plan_and_kernel_must_agree_on_is_defined_once(constant):
    texts = [path.read_text() for path in CSRC.rglob("*") if path.is_file()]
    assert sum(len(re.findall(rf"\b{constant}\s*=[^=]", text)) for text in texts) == 1


def test_triton_cuts_spans_where_the_cpu_does():
    triton = pytest.importorskip("ssd.kernels.tree_attention.triton")
    header = (CSRC / "include/ssd/attention.h").read_text()
    assert int(re.search(r"kSpan = (\d+)", header)[1]) == triton.SPAN
