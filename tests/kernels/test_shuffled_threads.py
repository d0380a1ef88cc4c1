"""Threads that take random shares of every loop, in random order and with random delays: the bits of one thread."""

import pytest
import torch
from attention_cases import make_case
from model_helpers import one_request, save_tiny

from ssd.kernels import kv_copy, linear, linear_swiglu, pack_linear, tree_attention
from ssd.kernels.linear import FORMATS
from ssd.model.llama import Llama


@pytest.fixture
def shuffled():
    """Results of one thread, then of three that are shuffled, the last at every pass with other seeds."""

    def run(f, rounds=8):
        torch.ops.ssd.bind_threads([-1])
        yield f()
        for seed in range(1, rounds + 1):
            torch.ops.ssd.bind_threads([-1, -1, -1], seed)
            yield f()

    yield run
    torch.ops.ssd.bind_threads([-1, -1])


def check(results):
    wanted, *found = results
    for got in found:
        assert all(torch.equal(a, b) for a, b in zip(wanted, got, strict=True))


@pytest.mark.parametrize("fmt", FORMATS)
def test_linear(fmt, shuffled):
    g = torch.Generator().manual_seed(0)
    w, x = torch.randn(1600, 256, generator=g), torch.randn(40, 256, generator=g)
    packed, residual = pack_linear(w, fmt), torch.randn(40, 1600, generator=g)
    for rows in (1, 5, 40):
        some = x[:rows].contiguous()
        check(
            shuffled(lambda: (linear(some, packed, 1600, None, residual[:rows]), linear_swiglu(some, packed, 1600)))  # noqa: B023
        )


@pytest.mark.parametrize("prefixes,rows", [([900], [1]), ([0, 250, 513], [40, 17, 1])])
def test_attention(prefixes, rows, shuffled):
    case = make_case(prefixes, rows, 9, 3, 64, torch.bfloat16)
    check(shuffled(lambda: tree_attention(*case.args(), scale=0.125, return_lse=True)))


@pytest.mark.parametrize("dtype", ["bf16", "int8"])
def test_prefill_and_decode_steps(dtype, shuffled, tmp_path):
    pytest.importorskip("transformers")
    save_tiny(tmp_path, max_position_embeddings=512, num_attention_heads=6, hidden_size=96)
    model = Llama.load(tmp_path, dtype)
    ids = torch.randint(0, 99, (310,), generator=torch.Generator().manual_seed(1))

    def decode():
        kv = model.new_kv_cache(24)
        return [
            model.forward(one_request(ids[i:j], prefix=i), kv)
            for i, j in ((0, 300), (300, 301), (301, 305), (305, 306))
        ]

    check(shuffled(decode))


def test_kv_copy(shuffled):
    g = torch.Generator().manual_seed(2)
    k, v = (torch.randn(6, 40, 16, 2, 64, generator=g) for _ in range(2))
    slots = torch.randperm(640, generator=g)

    def moved():
        caches = k.clone(), v.clone()
        kv_copy(*caches, slots[:200], slots[100:300])
        return caches

    check(shuffled(moved))
