"""The product on a simulated GPU (tests/helpers/simulated_gpu.py), in a process that runs Triton's interpreter."""

import fast_interpreter
import pytest
from backends import INTERPRETED

if INTERPRETED:
    import simulated_gpu

    fast_interpreter.hasten()
    simulated_gpu.install()
else:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(autouse=True)
def simulator(request):
    """The simulated GPU, whose threads come late by a seed: that of a test that is parametrized with one."""
    simulated_gpu.reset(getattr(request.node, "callspec", None) and request.node.callspec.params.get("seed", 1) or 1)
    return simulated_gpu.SIMULATOR
