import os
import threading

import pytest
import torch

CORES = sorted(os.sched_getaffinity(0))


def in_a_thread(f):
    out = []
    thread = threading.Thread(target=lambda: out.append(f()))
    thread.start()
    thread.join()
    return out[0]


def test_a_pinned_thread_narrows_nobody():
    def pinned():
        torch.ops.ssd.bind_threads(CORES[:1])
        child = in_a_thread(lambda: (torch.ops.ssd.bind_threads([-1, -1]), torch.ops.ssd.num_threads())[1])
        narrow = os.sched_getaffinity(0)
        torch.ops.ssd.bind_threads([-1])
        return narrow, child, os.sched_getaffinity(0)

    assert in_a_thread(pinned) == ({CORES[0]}, 2, set(CORES))
    assert list(torch.ops.ssd.allowed_cores()) == CORES


def test_another_threads_pool_is_its_own():
    torch.ops.ssd.bind_threads([-1, -1, -1])
    assert in_a_thread(torch.ops.ssd.num_threads) == len(CORES)
    assert torch.ops.ssd.num_threads() == 3
    torch.ops.ssd.bind_threads([-1] * len(CORES))


def test_engines_on_different_cores_in_one_process():
    from ssd.runtime.devices.threads import bind, cores_of

    if len(CORES) < 2:
        pytest.skip("one core")

    def both():
        bind(cores_of(CORES[:1]))
        bind(cores_of(CORES[1:2]))
        return os.sched_getaffinity(0)

    assert in_a_thread(both) == {CORES[1]}
