"""The product on a simulated GPU (tests/helpers/simulated_gpu.py), in a process that runs Triton's interpreter."""

import os
import pickle
import random
from pathlib import Path
from time import monotonic

import pytest
import torch
from backends import INTERPRETED

if INTERPRETED:
    import fast_interpreter
    import simulated_gpu

    fast_interpreter.hasten()
    simulated_gpu.install()
else:
    collect_ignore_glob = ["test_*.py"]

from product_runs import Models, PlainAnswers  # noqa: E402

from bench.launches.signatures import noted  # noqa: E402
from ssd.runtime.lanes.verify_lane import VerifyLane  # noqa: E402
from ssd.runtime.switching import auto  # noqa: E402
from ssd.runtime.switching.cost_model import Costs  # noqa: E402
from ssd.runtime.sync.policy import Policy, Record  # noqa: E402

EVEN = Costs(*[{1: 0.01, 5: 0.012, 12: 0.02}] * 4)
MOMENT = 20_000  # microseconds


@pytest.fixture(scope="session", autouse=True)
def signatures():
    """Writes the signatures of all launches to the file that the environment names."""
    with noted() as found:
        yield
    if file := os.environ.get("SIGNATURES"):
        Path(file).write_bytes(pickle.dumps(list(found)))


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    return Models(tmp_path_factory.mktemp("models"), 1, "simgpu:0")


@pytest.fixture(scope="session")
def two_layers(tmp_path_factory):
    """Models of two layers, and what they answer."""
    models = Models(tmp_path_factory.mktemp("models"), 2, "simgpu:0")
    return models, PlainAnswers(models)


@pytest.fixture
def seed():
    return 1


@pytest.fixture(autouse=True)
def simulator(seed):
    """The simulated GPU, whose threads come late by a seed."""
    simulated_gpu.reset(seed)
    return simulated_gpu.SIMULATOR


@pytest.fixture
def eager(monkeypatch, seed):
    """Speculation always pays, a draft lane has prepared something in most rounds, and mode auto changes often."""
    chance, observe = random.Random(seed), VerifyLane.observe

    def later(self, round):
        slots = torch.tensor([slot.index for slot in self.slots.by_sequence.values()], dtype=torch.int64)
        until = monotonic() + 3 * (chance.random() < 0.8)
        while len(slots) and self.lane and not self.lane.error and monotonic() < until:
            if self.cache.wait_ready(slots, MOMENT) == len(slots):
                break
        observe(self, round)

    monkeypatch.setattr(VerifyLane, "observe", later)
    monkeypatch.setattr(Policy, "wants_plain", lambda self, speed: False)
    monkeypatch.setattr(Policy, "costs", lambda self, sequences: (0.01, 0.01))
    monkeypatch.setattr(Record, "pays", lambda self: True)
    monkeypatch.setattr(auto, "EVERY", 3)
    monkeypatch.setattr("ssd.runtime.factory.costs_of", lambda *args: EVEN)
    other = {"sd": {"sd": 1.0, "ssd": 2.0}, "ssd": {"sd": 2.0, "ssd": 1.0}}
    monkeypatch.setattr(auto.AutoMode, "predictions", lambda self: other[self.mode])
