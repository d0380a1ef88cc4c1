"""The CUDA kernels, executed on the host by tests/helpers/cuda_host; docs/kernels-cuda.md says what that shows."""

import numpy as np
import pytest
import torch
from cuda_host import attention_cases as ac
from cuda_host import harness
from cuda_host.attention_cases import SHAPES, same_bits


@pytest.fixture(scope="module")
def host():
    return harness.build()


def attend(host, x, **how):
    return ac.read(x, harness.run([ac.case(x, **how)], host)[0])


def test_helpers_do_what_their_definitions_say(host):
    x = np.linspace(-3, 70, 256, dtype=np.float32)
    for seed in range(3):
        out = np.frombuffer(harness.run([{"kernel": "words", "x": x, "seed": seed}], host)[0]["out"], np.uint32)
        out = out.reshape(14, 64)
        i = np.arange(64, dtype=np.uint32)
        lane, warp = i % 32, i // 32 * 32
        nan, half = np.uint32(0xFFFFFFFF), torch.from_numpy(x.copy()).to(torch.float16).numpy()
        bits = torch.from_numpy(x.copy()).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16).astype(np.uint32)
        want = [
            warp + 5,
            warp + (lane ^ 7),
            np.where(lane >= 3, i - 3, i),
            [sum(1 << k for k in range(32) if (w + k) % 3 == 0) for w in warp],
            np.ones(64),
            np.zeros(64),
            [sum(range(w, k + 1)) for w, k in zip(warp, i, strict=True)],
            np.full(64, nan),  # a copy becomes visible at its wait, not before
            np.full(64, nan),
            np.where(i % 2, x.view(np.uint32)[4 * i + 3], 0),
            np.where((63 - i) % 2, x.view(np.uint32)[4 * (63 - i)], 0),
            bits[i] | bits[i + 1] << 16,
            half.view(np.uint16)[i].astype(np.uint32) | half.view(np.uint16)[i + 1].astype(np.uint32) << 16,
            half[i + 1].astype(np.float32).view(np.uint32),
        ]
        for row, (got, expected) in enumerate(zip(out, want, strict=True)):
            assert np.array_equal(got, np.asarray(expected).astype(np.uint32)), row


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("trans", [0, 1])
def test_ldmatrix_and_mma_multiply(host, dtype, trans):
    torch.manual_seed(1)
    a, b = (torch.randn(16, 16).to(ac.DTYPES[dtype]) for _ in range(2))
    c = torch.randn(16, 16)
    want = c.double() + a.double() @ (b if trans else b.T).double()
    case = {"kernel": "mma", "dtype": dtype, "a": a, "b": b, "out": c.numpy(), "trans": trans}
    for r in harness.run([{**case, "mma_order": order} for order in range(4)], host):
        got = torch.frombuffer(bytearray(r["out"]), dtype=torch.float32).view(16, 16)
        torch.testing.assert_close(got, want.float())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_matches_reference_and_bits_are_the_same_under_every_plan_and_order(host, shape):
    x = ac.make(np.random.default_rng(shape[3]), *shape)
    head_dim = shape[3]
    cases = [ac.case(x)]
    for n, wm in enumerate((1, 2) if head_dim == 256 else (1, 2, 4)):
        cases += [ac.case(x, wm=wm, split=split, seed=2 * n + 1 + split) for split in (True, False)]
    first, *others = [ac.read(x, r) for r in harness.run(cases, host)]
    ac.check(x, *first)
    for other in others:
        assert same_bits(first, other)


@pytest.mark.parametrize("order", range(4))
@pytest.mark.parametrize("mask", [None, "tree"])
def test_a_row_equals_plain_decoding_in_every_bit(host, mask, order):
    """Each row equals the one new token of a sequence with the keys of its path, in any order of the MMA's sums."""
    rng = np.random.default_rng(5)
    x = ac.make(rng, [7, 4], [250, 61], heads=(3, 1), mask=mask)
    whole = attend(host, x, mma_order=order)
    alone = [ac.row_alone(rng, x, r) for r in range(11)]
    results = harness.run([ac.case(y, mma_order=order, seed=3) for y in alone], host)
    for r, (y, result) in enumerate(zip(alone, results, strict=True)):
        assert same_bits([t[r : r + 1] for t in whole], ac.read(y, result)), r


def test_soft_cap_float_queries_and_strides(host):
    rng = np.random.default_rng(6)
    x = ac.make(rng, [3, 2], [70, 5], heads=(6, 2), mask="tree", softcap=2.5, q_float=True)
    dense = attend(host, x)
    ac.check(x, *dense)
    wide = {name: torch.full((*x[name].shape[:-1], 136), float("nan"), dtype=x[name].dtype) for name in "qkv"}
    for name, t in wide.items():
        t[..., 8:72] = x[name]
    views = {name: t[..., 8:72] for name, t in wide.items()}
    views["v"] = x["v"].transpose(1, 2).contiguous().transpose(1, 2)
    assert same_bits(dense, attend(host, {**x, **views}))


@pytest.mark.parametrize("stride", range(3), ids=["pages", "slots", "heads"])
@pytest.mark.parametrize("mask", [None, "tree"])
def test_offsets_beyond_32_bits(host, mask, stride):
    """Pages, slots or heads of the caches are 2^32 elements apart."""
    x = ac.make(np.random.default_rng(10), [3, 2], [20, 5], heads=(4, 2), mask=mask)
    strides = list(x["k"].stride()[:3])
    strides[stride] = 2**32 + 8 * 64
    far = {**ac.case(x), "far": np.array(strides, np.int64)}
    assert same_bits(attend(host, x), ac.read(x, harness.run([far], host)[0]))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("mask", [None, "tree"])
def test_what_a_row_does_not_see_never_reaches_it(host, value, mask):
    x = ac.make(np.random.default_rng(7), [6], [90], heads=(2, 1), mask=mask)
    before = attend(host, x, seed=1)
    at = 90 + 3  # slot 3
    for name in "kv":
        x[name][x["page_table"][0, at // 16], at % 16, 0, 5:8] = value
    after = attend(host, x, seed=2)
    sees = [r >= 3 if mask is None else bool(int(x["mask"][r, 0]) >> 3 & 1) for r in range(6)]
    assert any(sees) and not all(sees)
    for r in range(6):
        rows = [t[r : r + 1] for t in before], [t[r : r + 1] for t in after]
        assert same_bits(*rows) != sees[r], r
        assert torch.isfinite(after[0][r]).all() != sees[r]


def test_a_row_that_sees_nothing_is_zero(host):
    x = ac.make(np.random.default_rng(8), [2, 1], [0, 600], mask="tree")
    x["mask"][0] = 0
    out, lse = attend(host, x)
    assert (out[0] == 0).all() and (lse[0] == -float("inf")).all()
    ac.check(x, out, lse)


EDITS = [  # in one build, where PLANTED(n) is true if a case asks for fault n
    ("attention/load.cuh", "bool there = at.x >= 0;", "bool there = at.x >= 0 || PLANTED(1);"),
    ("attention/load.cuh", "dst + key * S::LD + d, src", "dst + (key + PLANTED(2)) * S::LD + d, src"),
    (
        "attention/tree_attention.cuh",
        "cp_async_wait<2>();  // V has landed\n    __syncthreads();",
        "if (!PLANTED(3)) cp_async_wait<2>();\n    if (!PLANTED(4)) __syncthreads();",
    ),
    ("attention/online_softmax.cuh", "< end[h] ?", "< end[h] + PLANTED(5) ?"),
    (
        "attention/online_softmax.cuh",
        "(WN > 1) {\n    __syncthreads();",
        "(WN > 1) {\n    if (!PLANTED(6)) __syncthreads();",
    ),
]
FAULTS = {
    "none": None,
    "reads a page that is none": "AddressSanitizer",
    "writes past a shared array": "AddressSanitizer",
    "reads V before it has landed": AssertionError,
    "no barrier after V has landed": AssertionError,
    "a row sees its successor": AssertionError,
    "no barrier before the maxima are read": AssertionError,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_found(fault):
    broken = harness.build(EDITS, ("SSD_HOST_SMALL", "PLANTED(n)=(cuda_host::planted==n)"))
    x = ac.make(np.random.default_rng(9), [5], [150], heads=(4, 1))
    cases = [{**ac.case(x, wm=1, seed=seed), "planted": list(FAULTS).index(fault)} for seed in range(6)]

    def judge():
        for result in harness.run(cases, broken):
            ac.check(x, *ac.read(x, result))

    match FAULTS[fault]:
        case None:
            judge()
        case str(words):
            with pytest.raises(RuntimeError, match=words):
                judge()
        case error:
            with pytest.raises(error):
                judge()
