import backends
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kv_moves import MOVES, SLOTS

from ssd.kernels import kv_copy
from ssd.kernels.kv_copy import reference

ops = backends.fixture("cpu", "triton")


def caches(dtype=torch.float32):
    """Caches whose elements all have different bits."""
    bits = torch.int32 if dtype == torch.float32 else torch.int16
    k = torch.arange(1, 2 * SLOTS * 16 + 1, dtype=bits).view(dtype).view(2, 9, 16, 2, 8)
    return k, k.flip(0, 1).contiguous()


def longs(values):
    return torch.tensor(values, dtype=torch.int64)


@pytest.mark.parametrize("name", MOVES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_moves_are_as_if_at_once(ops, name, dtype):
    sources, targets = MOVES[name]
    k, v = caches(dtype)
    before = [c.flatten(1, 2).clone() for c in (k, v)]
    ops.kv_copy(k, v, longs(sources), longs(targets))
    slots = torch.arange(SLOTS)
    for source, target in zip(sources, targets, strict=True):
        if min(source, target) >= 0:
            slots[target] = source
    for now, was in zip((k, v), before, strict=True):
        assert torch.equal(now.flatten(1, 2), was[:, slots])


def test_moves_of_128_trees_in_one_call(ops):
    """Paths of seven nodes move down over themselves, among those of other sequences; first layer, later ones."""
    room = 16
    k = torch.arange(3 * 128 * room * 8, dtype=torch.int32).view(torch.float32).view(3, 128, room, 1, 8)
    v, order = k.flip(0, 1).contiguous(), torch.randperm(128 * 7, generator=torch.Generator().manual_seed(0))
    path = torch.tensor([1, 3, 4, 7, 8, 12, 13])
    places = torch.arange(128)[:, None] * room
    sources, targets = (places + path).flatten()[order], (places + torch.arange(7)).flatten()[order]
    wanted = k.clone(), v.clone()
    reference.kv_copy(*wanted, sources, targets)
    ops.kv_copy(k, v, sources, targets)
    assert all(torch.equal(x.view(torch.int32), y.view(torch.int32)) for x, y in zip((k, v), wanted, strict=True))


@settings(max_examples=60, deadline=None)
@given(st.permutations(range(64)), st.lists(st.integers(-1, SLOTS - 1), max_size=64))
def test_random_moves(targets, sources):
    moves = longs(sources), longs(targets[: len(sources)])
    ours, wanted = caches(), caches()
    kv_copy(*ours, *moves)
    reference.kv_copy(*wanted, *moves)
    assert torch.equal(ours[0], wanted[0]) and torch.equal(ours[1], wanted[1])


def test_opcheck_and_threads():
    moves = torch.tensor([1, 2, 3]), torch.tensor([2, 3, 1])
    torch.library.opcheck(torch.ops.ssd.kv_copy.default, (*caches(), *moves))
    few, many = (caches(), moves), (torch.randn(2, 8, 9, 16, 8, 64), torch.randperm(SLOTS)[:128].view(2, 64))
    for (k, v), moves in few, many:  # many: 4 MB, which several threads copy
        wanted = k.clone(), v.clone()
        reference.kv_copy(*wanted, *moves)
        for threads in (1, 2, 5):
            torch.ops.ssd.bind_threads([-1] * threads)
            ours = k.clone(), v.clone()
            kv_copy(*ours, *moves)
            assert torch.equal(ours[0], wanted[0]) and torch.equal(ours[1], wanted[1])
    torch.ops.ssd.bind_threads([-1, -1])


def test_bad_arguments_are_named():
    k, v = caches()
    one = torch.tensor([0])
    with pytest.raises(ValueError, match="targets: got slot 3 twice"):
        kv_copy(k, v, torch.tensor([0, 1]), torch.tensor([3, 3]))
    with pytest.raises(ValueError, match="sources: got 144 at 0, wanted at most 143"):
        kv_copy(k, v, one + SLOTS, one)
    with pytest.raises(ValueError, match="v_cache: got shape"):
        kv_copy(k, v[1:], one, one)
    with pytest.raises(TypeError, match="targets: got dtype"):
        kv_copy(k, v, one, one.int())
