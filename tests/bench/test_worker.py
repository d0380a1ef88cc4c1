"""The process in which each system is measured."""

import os

import pytest

from bench.worker import Worker, WorkerError

CORE = sorted(os.sched_getaffinity(0))[:1]
FAKE = "tests.helpers.fake_peer:Peer"
ARGS = {"target": "fast", "precision": "bf16", "mode": "ar"}


def test_worker_keeps_to_its_cores_and_passes_errors_on():
    with Worker(FAKE, CORE, ARGS) as worker:
        cores, places = worker.call("cores")
        assert cores == CORE and places == f"{{{CORE[0]}}}"
        with pytest.raises(WorkerError, match="ValueError: x: got 1, wanted 2"):
            worker.call("fail")
        assert worker.call("generate", ids=[5, 6], max_tokens=3)["tokens"] == [6, 6, 6]
        assert worker.call("peak_memory") > 1 << 20
        with pytest.raises(WorkerError, match="ended with code 3"):
            worker.call("leave")
    with pytest.raises(WorkerError, match="no such model"):
        Worker(FAKE, CORE, ARGS | {"refuse": "no such model"})
