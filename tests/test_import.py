"""The kernels alone: `from ssd.kernels import tree_attention` needs torch and nothing else of the package."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder

torchs = "torch torchgen functorch numpy typing_extensions sympy mpmath filelock jinja2 markupsafe networkx fsspec"
allowed = {*sys.stdlib_module_names, *torchs.split(), "ssd", "__mp_main__"}


class Allowed(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return super().find_spec(name, path, target) if name.partition(".")[0] in allowed else None


before = set(sys.modules)
sys.meta_path[:] = [BuiltinImporter, FrozenImporter, Allowed]
for name in "transformers safetensors tokenizers huggingface_hub gguf triton scipy pytest".split():
    try:
        __import__(name)
    except ModuleNotFoundError:
        continue
    raise SystemExit(f"{name} is there")

import torch
from ssd.kernels import tree_attention

torch.manual_seed(0)
q, (k, v) = torch.randn(3, 4, 16), torch.randn(2, 2, 16, 2, 16)
ints = [torch.tensor(x, dtype=torch.int32) for x in ([[1, 0]], [18], [0, 3])]
mask = torch.tensor([[0b001], [0b011], [0b101]])  # a root and its two children
out, _ = tree_attention(q, k, v, *ints, mask, scale=0.25)
keys, values = (x[[1, 0]].flatten(0, 1)[:21].repeat_interleave(2, 1) for x in (k, v))
seen = torch.ones(3, 21, dtype=torch.bool)
seen[:, 18:] = mask >> torch.arange(3) & 1 > 0
scores = torch.einsum("thd,lhd->htl", q, keys) * 0.25
wanted = torch.einsum("htl,lhd->thd", scores.masked_fill(~seen, -torch.inf).softmax(-1), values)
torch.testing.assert_close(out, wanted)
packages = {name.partition(".")[0] for name in set(sys.modules) - before}
print(sorted(packages - allowed), sorted(n for n in sys.modules if n.startswith("ssd.") and "kernels" not in n))
"""


def test_tree_attention_needs_torch_alone():
    root = Path(__file__).parents[1]
    run = subprocess.run([sys.executable, "-c", SCRIPT], cwd=root, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split("\n")[0] == "[] []"


def test_every_folder_with_code_is_a_package_that_is_installed():
    from setuptools import find_packages

    root = Path(__file__).parents[1]
    folders = {".".join(p.parent.relative_to(root).parts) for p in (root / "ssd").rglob("*.py")}
    assert folders == set(find_packages(root, include=["ssd*"]))


@pytest.mark.parametrize("old", ["exit 1", None])
def test_build_needs_a_python_that_is_new_enough(old, tmp_path):
    for name in ("Makefile", "requirements.txt"):
        shutil.copy(Path(__file__).parents[1] / name, tmp_path)
    python = tmp_path / "python"
    if old:
        python.write_text(f"#!/bin/sh\n{old}\n")
        python.chmod(0o755)
    done = subprocess.run(["make", f"PYTHON={python}", "setup"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and "ssd needs Python 3.10 to 3.13: name one with PYTHON=" in done.stderr
    assert not (tmp_path / ".venv").exists()
