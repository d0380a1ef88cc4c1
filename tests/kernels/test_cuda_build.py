"""The CUDA part of the extension compiles as setup.py has it, against torch's own headers.

A build of torch without CUDA has these headers but not the libraries, so only linking is left to a machine with a GPU.
"""

import runpy
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
import setuptools
import torch
from torch.utils import cpp_extension

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def extension():
    """The sources and flags of setup.py if torch has CUDA."""
    if not shutil.which("nvcc"):
        pytest.skip("nvcc is not there: the extension's CUDA sources are not compiled")
    asked = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.setattr(torch.version, "cuda", torch.version.cuda or "13.0")
        patch.setattr(cpp_extension, "CUDA_HOME", str(Path(shutil.which("nvcc")).resolve().parent.parent))
        patch.setattr(setuptools, "setup", asked.update)
        patch.delenv("TORCH_CUDA_ARCH_LIST", raising=False)
        runpy.run_path("setup.py")
        (made,) = asked["ext_modules"]
        made.flags = [
            *cpp_extension.COMMON_NVCC_FLAGS,
            *("--compiler-options", "-fPIC"),
            *made.extra_compile_args["nvcc"],
            *cpp_extension._get_cuda_arch_flags(made.extra_compile_args["nvcc"]),
            *(f"-I{folder}" for folder in [*made.include_dirs, sysconfig.get_paths()["include"]]),
        ]
    return made


def test_sources_are_all_and_architectures_those_with_the_instructions(extension):
    assert {s for s in extension.sources if s.endswith(".cu")} == {
        str(p.relative_to(ROOT)) for p in (ROOT / "csrc/cuda").rglob("*.cu")
    }
    archs = [flag for flag in extension.flags if flag.startswith("-gencode")]
    assert archs and all("_80" in flag or "_90" in flag for flag in archs)


SLOW = pytest.param("ops.cu", marks=pytest.mark.slow)  # torch's headers take minutes


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("source", ["launch.cu", SLOW])
def test_a_source_compiles_with_the_flags_of_setup(extension, source, tmp_path):
    command = ["nvcc", *extension.flags, "-c", f"csrc/cuda/{source}", "-o", str(tmp_path / "object.o")]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
    assert "warning" not in run.stderr.lower(), run.stderr[-3000:]
