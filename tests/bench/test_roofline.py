"""The probes of read bandwidth and of multiply-adds."""

import os

import numpy as np
import pytest
import torch


@pytest.fixture
def bind_threads():
    yield lambda n: torch.ops.ssd.bind_threads([-1] * n)
    torch.ops.ssd.bind_threads([-1] * len(os.sched_getaffinity(0)))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("words", [0, 8, 8 * 5, 8 * 1001])
def test_probe_read_is_the_xor_of_all_words(threads, words, isas, bind_threads):
    x = torch.randint(-(2**62), 2**62, (words,))
    bind_threads(threads)
    for isa in isas:
        torch.ops.ssd.set_isa(isa)
        assert torch.ops.ssd.probe_read(x) == int(np.bitwise_xor.reduce(x.numpy()))


def test_probe_fma_counts_the_operations_of_all_threads(bind_threads):
    counts = []
    for threads in (1, 3):
        bind_threads(threads)
        counts.append(torch.ops.ssd.probe_fma(10))
    assert counts[1] == 3 * counts[0] and counts[0] % (2 * 16 * 10) == 0 and counts[0] > 0


def test_probes_name_bad_arguments():
    with pytest.raises(ValueError, match="x: got 4 bytes, wanted a multiple of 64"):
        torch.ops.ssd.probe_read(torch.zeros(1))
    with pytest.raises(ValueError, match="iterations: got 0"):
        torch.ops.ssd.probe_fma(0)
