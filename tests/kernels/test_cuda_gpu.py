"""Attention at sizes that only a GPU can afford, and verify_swap in the tests that it passes on the host."""

import attention_rows as ar
import numpy as np
import pytest
import torch
from attention_cases import make_case
from attention_rows import SHAPES, same_bits
from cuda_host.rounds import N, Rounds, read

from ssd.kernels import tree_attention, verify_swap

pytestmark = pytest.mark.gpu
NAMES = "q k v page_table prefix_lens row_offsets mask".split()


def attend(x):
    args = [x[n] if x[n] is None else x[n].cuda() for n in NAMES]
    return [t.cpu() for t in tree_attention(*args, scale=x["scale"], softcap=x["softcap"], return_lse=True)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_attention_matches_reference_and_every_row_plain_decoding(shape):
    rng = np.random.default_rng(shape[3])
    x = ar.make(rng, *shape)
    whole = attend(x)
    ar.check(x, *whole)
    for r in range(0, len(x["q"]), max(1, len(x["q"]) // 12)):
        assert same_bits([t[r : r + 1] for t in whole], attend(ar.row_alone(rng, x, r))), r


@pytest.mark.parametrize("mask", [None, "tree"])
def test_a_row_does_not_depend_on_how_many_come_with_it(mask):
    """The sizes go from one row to enough rows that spans are folded in place; a request is the same in a batch and
    alone."""
    rng = np.random.default_rng(11)
    x = ar.make(rng, [40, 300 if mask is None else 60, 1], [1000, 700, 2000], heads=(32, 8), head_dim=128, mask=mask)
    whole = attend(x)
    for r in (0, 39, 40, 77, 99, len(x["q"]) - 1):
        assert same_bits([t[r : r + 1] for t in whole], attend(ar.row_alone(rng, x, r))), r


def test_attention_with_offsets_beyond_32_bits():
    if torch.cuda.mem_get_info()[0] < 24 << 30:
        pytest.skip("needs 24 GiB of free memory on the GPU")
    x = ar.make(np.random.default_rng(10), [3, 2], [20, 5], heads=(4, 2))
    near = attend(x)
    args = {n: None if x[n] is None else x[n].cuda() for n in NAMES}
    for dim in range(3):
        strides = list(x["k"].stride())
        strides[dim] = 2**31 // (x["k"].shape[dim] - 1) // 8 * 8 + 64  # the last element is beyond 2^31
        base = torch.empty(sum((n - 1) * s for n, s in zip(x["k"].shape, strides, strict=True)) + 1, dtype=x["k"].dtype,
                           device="cuda")  # fmt: skip
        far = {n: base.as_strided(x["k"].shape, strides).copy_(args[n]) for n in "k"}
        got = tree_attention(*(args | far).values(), scale=x["scale"], softcap=0.0, return_lse=True)
        assert same_bits(near, [t.cpu() for t in got]), dim
        del base, far


@pytest.mark.parametrize("features", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_verify_swap_is_what_the_host_runs(seed, features):
    """Every word of cache, outcome and next inputs equals that of the same kernel on the host."""
    from cuda_host import harness

    r = Rounds(seed, features, deep=seed == 3)
    r.publish([0, 2, 3, 5], int(r.rng.integers(1, N)))
    case = r.case()
    want = read(harness.run([case])[0])
    inputs = {n: torch.from_numpy(case[n].view(np.int64) if n == "mask" else case[n]).cuda()
              for n in "ids parents positions kv_slots mask prefix_lens".split()}  # fmt: skip
    cache, sampled = r.cache.block.cuda(), torch.from_numpy(case["sampled"]).cuda()
    rest = torch.from_numpy(case["page_table"]).cuda(), case["page_size"], torch.from_numpy(case["capacity"]).cuda()
    rows = None if r.features is None else r.features.cuda()
    done = verify_swap(cache, list(r.cache.sizes), r.slots.cuda(), sampled, *inputs.values(), *rest, rows)
    got = {"cache": cache, **inputs, **done._asdict()}
    for name, value in want.items():
        mine = got[name].cpu().numpy().ravel()
        assert np.array_equal(mine.view(value.dtype), value), name


def test_opcheck():
    case = make_case([20, 5], [3, 2], 4, 2, 64, torch.bfloat16, tree=1)
    args = [t.cuda() for t in case.args()]
    torch.library.opcheck(torch.ops.ssd.tree_attention.default, (*args, 0.125, 0.0, True))
    cache, moves = torch.randn(2, 3, 16, 2, 64, device="cuda"), torch.tensor([1, 2], device="cuda")
    torch.library.opcheck(torch.ops.ssd.kv_copy.default, (cache, cache.clone(), moves, moves + 4))
