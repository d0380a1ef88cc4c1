"""A draft lane that compiles a kernel, which takes longer than a lane may go without a sign of life."""

import os
import threading

import pytest

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the interpreter compiles nothing", allow_module_level=True)

import torch  # noqa: E402
from lane_helpers import make  # noqa: E402
from planted_kernels import plain_kernel  # noqa: E402
from speculation_helpers import answers  # noqa: E402
from triton import knobs  # noqa: E402
from triton.runtime import driver  # noqa: E402

from bench.launches.measure import Compiled, NullDriver  # noqa: E402
from ssd.kernels import compiling  # noqa: E402
from ssd.model.draft import Draft  # noqa: E402
from ssd.runtime.lanes.supervisor import STALLED  # noqa: E402

SECONDS = 5.0


@pytest.fixture
def watching(monkeypatch):
    """Triton's hooks are watched, and its launches go nowhere."""
    for name in ("jit_cache_hook", "jit_post_compile_hook"):
        monkeypatch.setattr(knobs.runtime, name, None)
    monkeypatch.setattr(compiling, "watched", False)
    monkeypatch.setattr(compiling, "count", 0)
    active = driver._active
    driver.set_active(NullDriver())
    compiling.watch()
    yield
    driver.set_active(active)


def compiles(monkeypatch, stub) -> None:
    """From now on the kernel is compiled by stub(), and it was not yet."""
    driver.active.device = NullDriver().device  # each device has a cache of its own
    plain_kernel.device_caches[driver.active.device]
    monkeypatch.setattr(plain_kernel, "compile", lambda *args, **kwargs: stub() or Compiled())


def launch() -> None:
    plain_kernel[(1,)](torch.zeros(4), 2, 3)


@pytest.mark.briefly
@pytest.mark.parametrize("watched, failures", [(True, 0), (False, 1)])
def test_a_lane_that_compiles_is_alive(watched, failures, watching, tiny_folder, tiny_target, plain, monkeypatch):
    """For longer than the product waits for a lane that shows no sign of life."""
    assert STALLED == 0.8
    over, began, forward = threading.Event(), threading.Event(), Draft.forward_features

    def stub():
        began.set()
        over.wait(SECONDS)

    def first_compiles(self, *args):
        if threading.current_thread().name == "draft lane":
            launch()
        return forward(self, *args)

    compiles(monkeypatch, stub)
    if not watched:
        monkeypatch.setattr(compiling, "newest", lambda: 0.0)
    monkeypatch.setattr(Draft, "forward_features", first_compiles)
    llm = make(tiny_folder, tiny_target, Draft.load(tiny_folder, tiny_target, "bf16"), k=3, lockstep=False)
    supervisor = llm.engine.speculator.supervisor
    while supervisor.failures < failures or not (began.is_set() and supervisor.lane.rounds):
        assert answers(llm) == plain
        if supervisor.failures:
            over.set()
    assert supervisor.failures == failures and compiling.count >= 1
    llm.close()


def test_a_compilation_is_noted_while_it_lasts_and_when_it_fails(watching, monkeypatch):
    seen, earlier = [], compiling.newest()

    def stub():
        seen.append(compiling.newest() < compiling.newest())

    compiles(monkeypatch, stub)
    launch(), launch()
    assert seen == [True] and compiling.count == 1
    assert earlier < compiling.newest() == compiling.newest()

    def fails():
        raise RuntimeError("planted")

    compiles(monkeypatch, fails)
    with pytest.raises(RuntimeError, match="planted"):
        launch()
    assert compiling.newest() < compiling.newest()
    compiling.ends()  # as the operators do
    assert compiling.newest() == compiling.newest() and compiling.count == 1


def test_hooks_that_were_there_are_kept(monkeypatch):
    called = []
    for name in ("jit_cache_hook", "jit_post_compile_hook"):
        monkeypatch.setattr(knobs.runtime, name, lambda name=name, **about: called.append(name))
    monkeypatch.setattr(compiling, "watched", False)
    compiling.watch()
    knobs.runtime.jit_cache_hook(key=1)
    knobs.runtime.jit_post_compile_hook(key=1)
    assert called == ["jit_cache_hook", "jit_post_compile_hook"]
