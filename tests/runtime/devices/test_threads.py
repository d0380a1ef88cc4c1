import os
import subprocess
import sys
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


@pytest.mark.skipif(len(CORES) < 2, reason="one core")
def test_torchs_threads_do_not_share_the_one_core_of_a_bound_thread():
    """Those start at the first parallel loop, with the affinity of the thread that runs it."""
    code = f"""
import os, torch
from ssd.runtime.devices.threads import bind
bind([{CORES[0]}])
torch.empty(1 << 22).sum()
print(sum(os.sched_getaffinity(int(t)) == {{{CORES[0]}}} for t in os.listdir("/proc/self/task")))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) == 1
