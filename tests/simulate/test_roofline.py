"""Shapes of models, data sheets of GPUs, and the times of passes that follow from them."""

import math
from dataclasses import replace

import pytest

from ssd.simulate.hardware import GPUS, gpu
from ssd.simulate.models import MODELS, model
from ssd.simulate.roofline import Constants, Roofline


def test_shapes_have_the_published_numbers_of_weights():
    billions = {name: (m.weights + m.hidden * m.vocab) / 1e9 for name, m in MODELS.items()}  # with the embedding table
    for name, whole in (("llama-3.1-8b", 8.03), ("llama-3.1-70b", 70.55), ("qwen3-32b", 32.76)):
        assert billions[name] == pytest.approx(whole, rel=2e-3)
    tied = {"llama-3.2-1b": 1.236, "qwen3-0.6b": 0.596, "smollm2-135m": 0.1345}  # the table is the output matrix
    for name, whole in tied.items():
        assert MODELS[name].weights / 1e9 == pytest.approx(whole, rel=2e-3)
    assert MODELS["llama-3.1-70b"].kv_bytes == 2 * 80 * 8 * 128 * 2


def test_every_figure_of_a_gpu_has_a_source():
    for g in GPUS.values():
        assert set(g.source) == {"bandwidth", "matrix", "memory", "link", "launch", "all_reduce"}
        assert all(len(text) > 20 for text in g.source.values())


def test_a_pass_by_hand_and_without_limits():
    c = Constants(0.5, 2e-3, 1e-3)
    times = Roofline(gpu("h100"), model("llama-3.1-70b"), model("llama-3.2-1b"), c, 4, 100)
    t = times.target
    seconds = (t.weight_bytes + 100 * t.kv_bytes) / (0.5 * 3.35e12 * 4) + 80 * (9 * 1.3e-6 + 2 * 4.8e-6) + 2e-3
    assert times.verify(1, 1) == pytest.approx(seconds)
    assert times.verify(1, 4000) > 4 * times.verify(1, 1)  # there the matrix rate decides
    free = replace(times.gpu, bandwidth=math.inf, matrix=math.inf, launch=0.0)
    assert replace(times, gpu=free, gpus=1).verify(8, 64) == pytest.approx(2e-3)
    assert replace(times, gpus=1).fits() is False and times.fits()
