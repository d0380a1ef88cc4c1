import backends
import interpreter
import pytest
import torch

from ssd.kernels import library

OWN = {"triton_kernels", "gpu_path"}  # folders of tests that only the interpreter runs
library.load()
if backends.INTERPRETED:
    interpreter.prepare()


def pytest_collection_modifyitems(items):
    if backends.INTERPRETED:
        items[:] = [i for i in items if "ops" in i.fixturenames or OWN & set(i.path.parts)]
    elif not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a GPU"))


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """What tests measure, calibrate and pack goes to a folder of this test run."""
    for module in ("runtime.factory", "model.packed_weights"):
        monkeypatch.setattr(f"ssd.{module}.cache_folder", lambda: tmp_path_factory.getbasetemp() / "cache")


@pytest.fixture(autouse=True)
def patience(request, monkeypatch):
    """Draft lanes get more time on a busy machine; only tests of hanging lanes wait as briefly as the product does."""
    if "briefly" not in request.keywords:
        monkeypatch.setattr("ssd.runtime.lanes.supervisor.STALLED", 20.0)


@pytest.fixture
def isas():
    """Names of the instruction sets that this CPU supports; the best one is restored afterwards."""
    found = []
    for isa in ("portable", "avx2", "avx512"):
        try:
            torch.ops.ssd.set_isa(isa)
            found.append(isa)
        except ValueError:
            pass
    yield found
    torch.ops.ssd.set_isa("auto")


@pytest.fixture(scope="session")
def default_target():
    """Folder of the default target, fetched once; the test is skipped if it cannot be fetched."""
    from ssd.model.hub import resolve

    try:
        return resolve(progress=False)
    except OSError as e:
        pytest.skip(f"the default target is not to be had: {e}")


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    """Folder of a random Llama with a few thousand weights."""
    import tiny_checkpoint

    return tiny_checkpoint.write(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def tiny_target(tiny_folder):
    """The tiny Llama, loaded in bf16."""
    from ssd.model.llama import Llama

    return Llama.load(tiny_folder, "bf16")
