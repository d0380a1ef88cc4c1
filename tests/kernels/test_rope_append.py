import backends
import pytest
import torch

from ssd.kernels import rope_append
from ssd.kernels.rope_append import reference

ops = backends.fixture("cpu", "triton")
STEP = {torch.float32: 1e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}


def make(rows=5, heads=3, kv_heads=1, d=64, dtype=torch.float32, seed=0):
    g = torch.Generator().manual_seed(seed)
    angle = torch.rand(40, d // 2, generator=g) * 6
    caches = [torch.full((4, 16, kv_heads, d), float("nan"), dtype=dtype) for _ in range(2)]
    qkv = torch.randn(rows, (heads + 2 * kv_heads) * d, generator=g)
    positions = torch.randint(0, 40, (rows,), generator=g, dtype=torch.int32)
    slots = torch.randperm(64, generator=g)[:rows]
    slots[1:2] = -1
    return qkv, angle.cos(), angle.sin(), positions, slots, *caches


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("heads,kv_heads,d", [(3, 1, 64), (7, 7, 80), (4, 2, 20), (9, 3, 256)])
def test_matches_reference(ops, heads, kv_heads, d, dtype):
    args = make(5, heads, kv_heads, d, dtype)
    check_reference(ops, args, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("heads,kv_heads,d", [(3, 1, 64), (4, 2, 20), (2, 2, 256)])
def test_norms_of_heads(ops, heads, kv_heads, d, dtype):
    args, (q_norm, k_norm) = make(5, heads, kv_heads, d, dtype), norms(d)
    for given in ((q_norm, k_norm), (q_norm, None), (None, k_norm)):
        for cache in args[5:]:
            cache.fill_(float("nan"))
        check_reference(ops, [*args, *given, 1e-2], dtype)


def check_reference(ops, args, dtype):
    theirs = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
    q, wanted = ops.rope_append(*args), reference.rope_append(*theirs)
    assert q.dtype == (dtype if ops.tensor_cores else torch.float32)
    torch.testing.assert_close(q.float(), wanted, rtol=max(1e-5, STEP[q.dtype]), atol=1e-6)
    for ours, wanted in zip(args[5:7], theirs[5:7], strict=True):  # nothing else was written
        torch.testing.assert_close(ours, wanted, rtol=STEP[dtype], atol=1e-6, equal_nan=True)


def norms(d):
    g = torch.Generator().manual_seed(1)
    return torch.rand(2, d, generator=g) + 0.5


def check_strided(rope_append, args, q, *norms):
    wide = [torch.full((4, 16, 5, 70), float("nan")) for _ in range(2)]
    views = [w[:, :, 1:4, 3:67] for w in wide]
    assert torch.equal(rope_append(*args[:5], *views, *norms), q)
    for view, cache in zip(views, args[5:], strict=True):
        assert torch.equal(view.nan_to_num(7), cache.nan_to_num(7))
    assert all(w[:, :, 0].isnan().all() and w[..., :3].isnan().all() for w in wide)


def test_strided_caches(ops):
    args = make(9, 6, 3)
    check_strided(ops.rope_append, args, ops.rope_append(*args))


def test_isas_give_the_same_bits(isas):
    args, normed = make(9, 6, 3), (*norms(64), 1e-2)
    for given in ((), normed):
        torch.ops.ssd.set_isa("auto")
        q = rope_append(*args, *given)
        for isa in isas:
            torch.ops.ssd.set_isa(isa)
            check_strided(rope_append, args, q, *given)


def test_opcheck():
    torch.library.opcheck(torch.ops.ssd.rope_append.default, make())
    torch.library.opcheck(torch.ops.ssd.rope_append.default, (*make(), *norms(64), 1e-5))


def test_bad_arguments_are_named():
    qkv, cos, sin, positions, slots, k, v = make()
    bad = [
        ("slots: got 64 in row 0", (qkv, cos, sin, positions, slots.clone().fill_(64), k, v)),
        ("positions: got 40 in row 0", (qkv, cos, sin, positions.clone().fill_(40), slots, k, v)),
        ("cos: got 31 columns", (qkv, cos[:, 1:].contiguous(), sin, positions, slots, k, v)),
        ("v_cache: got shape", (qkv, cos, sin, positions, slots, k, v[1:])),
        ("qkv: got 319 columns", (qkv[:, 1:].contiguous(), cos, sin, positions, slots, k, v)),
        ("q_norm: got 63 elements, wanted head_dim, 64", (qkv, cos, sin, positions, slots, k, v, torch.ones(63))),
        ("k_norm: got head_dim 320, wanted at most 256", (*make(d=320), None, torch.ones(320))),
        ("k_cache: got strides", (qkv, cos, sin, positions, slots, k.repeat(1, 1, 1, 2)[..., ::2], v)),
    ]
    for message, args in bad:
        with pytest.raises(ValueError, match=message):
            rope_append(*args)
    with pytest.raises(TypeError, match="slots: got dtype"):
        rope_append(qkv, cos, sin, positions, slots.int(), k, v)
