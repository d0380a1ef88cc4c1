import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ssd.kernels import kv_copy
from ssd.kernels.kv_copy import reference

SLOTS = 64


def caches(dtype=torch.float32):
    k = torch.arange(2 * SLOTS * 6).view(2, 4, 16, 2, 3).to(dtype)
    return k, -k


@settings(max_examples=60, deadline=None)
@given(st.permutations(range(SLOTS)), st.lists(st.integers(-1, SLOTS - 1), max_size=SLOTS))
def test_random_moves_as_if_at_once(targets, sources):
    sources, targets = (
        torch.tensor(sources, dtype=torch.int64),
        torch.tensor(targets[: len(sources)], dtype=torch.int64),
    )
    ours, wanted = caches(), caches()
    kv_copy(*ours, sources, targets)
    reference.kv_copy(*wanted, sources, targets)
    assert torch.equal(ours[0], wanted[0]) and torch.equal(ours[1], wanted[1])


@pytest.mark.parametrize(
    "sources,targets",
    [
        ([1, 2, 3], [0, 1, 2]),  # a path that moves down over itself
        ([0, 1, 2], [1, 2, 3]),  # up over itself: in order, slot 0 would spread
        ([5, 9], [9, 5]),  # a swap
        ([7, 8, 9], [8, 9, 7]),  # a cycle
        ([4, 4, 4], [1, 2, 4]),
        ([-1, 3], [0, -1]),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_targets_that_are_sources(sources, targets, dtype):
    k, v = caches(dtype)
    before = [c.flatten(1, 2).clone() for c in (k, v)]
    kv_copy(k, v, torch.tensor(sources), torch.tensor(targets))
    moved = {t: s for s, t in zip(sources, targets, strict=True) if s >= 0 and t >= 0}
    for now, was in zip((k, v), before, strict=True):
        for slot in range(SLOTS):
            assert torch.equal(now.flatten(1, 2)[:, slot], was[:, moved.get(slot, slot)])


def test_opcheck_and_threads():
    moves = torch.tensor([1, 2, 3]), torch.tensor([2, 3, 1])
    torch.library.opcheck(torch.ops.ssd.kv_copy.default, (*caches(), *moves))
    wanted = caches()
    reference.kv_copy(*wanted, *moves)
    for threads in (1, 2, 5):
        torch.ops.ssd.bind_threads([-1] * threads)
        ours = caches()
        kv_copy(*ours, *moves)
        assert torch.equal(ours[0], wanted[0]) and torch.equal(ours[1], wanted[1])
    torch.ops.ssd.bind_threads([-1, -1])


def test_bad_arguments_are_named():
    k, v = caches()
    one = torch.tensor([0])
    with pytest.raises(ValueError, match="targets: got slot 3 twice"):
        kv_copy(k, v, torch.tensor([0, 1]), torch.tensor([3, 3]))
    with pytest.raises(ValueError, match="sources: got 64 at 0, wanted at most 63"):
        kv_copy(k, v, one + 64, one)
    with pytest.raises(ValueError, match="v_cache: got shape"):
        kv_copy(k, v[1:], one, one)
    with pytest.raises(TypeError, match="targets: got dtype"):
        kv_copy(k, v, one, one.int())
