"""The product on a simulated GPU, in a process of its own, since Triton's interpreter is chosen before the import; and
what it launched there, lowered for real ones."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
pytest.importorskip("llguidance")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("needs Triton's compiler", allow_module_level=True)

from bench.launches.__main__ import ARCHS, every_signature  # noqa: E402
from bench.launches.signatures import Signature, distinct, failures  # noqa: E402

TESTS = Path(__file__).parent / "gpu_path"


def launched(file: Path, *options: str) -> list[Signature]:
    """The signatures of all launches of the tests of the GPU path, which must pass."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "SIGNATURES": str(file)}
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", str(TESTS), *options]
    run = subprocess.run(command, env=environment, cwd=TESTS.parents[2], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
    assert " passed" in run.stdout and "skipped" not in run.stdout
    return pickle.loads(file.read_bytes())


def kinds(signatures: list[Signature]) -> set:
    """Kernels, with the dtypes of their tensors and the arguments that are None."""
    return {(s.kernel, s.nothing, s.dtypes) for s in signatures}


@pytest.mark.timeout(1200)
def test_the_product_on_a_simulated_gpu_and_its_launches_on_real_ones(tmp_path):
    found = distinct(launched(tmp_path / "signatures"))
    assert {"linear_fwd_kernel", "top_f_kernel", "walk_kernel", "kv_copy_kernel"} < {s.name for s in found}
    assert not failures(found, ARCHS)
    assert kinds(found) <= kinds(every_signature())  # those of models of other sizes, which test_launches lowers


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_longer_runs_and_every_launch(tmp_path):
    found = distinct(launched(tmp_path / "signatures", "-m", "slow"))
    assert {"linear_fwd_kernel", "tree_attention_fwd_kernel", "top_f_kernel"} < {s.name for s in found}
    assert not failures(found, ARCHS)
