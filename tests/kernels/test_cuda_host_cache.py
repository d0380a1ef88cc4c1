"""The CUDA kernel verify_swap, executed on the host and compared with the CPU's operators."""

import numpy as np
import pytest
import torch
from cuda_host import harness
from cuda_host.rounds import PAGE, VOCAB, B, N, Rounds, read

from ssd.runtime.lanes.speculation_cache import SpeculationCache


@pytest.fixture(scope="module")
def host():
    return harness.build()


@pytest.mark.parametrize("features", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_verify_swap_is_match_swap_post_and_the_next_inputs(host, seed, features):
    r = Rounds(seed, features, deep=seed == 3)
    r.publish([0, 2, 3, 5], N if seed == 1 else int(r.rng.integers(1, N)))
    r.capacity[3] = r.prefix[3] + len(r.walk(3)[1]) + 3  # room for the root and two nodes
    results = [read(x) for x in harness.run([r.case(seed=s) for s in range(3)], host)]
    for other in results[1:]:
        assert all(np.array_equal(results[0][n], other[n]) for n in other)
    got = results[0]

    path, accepted, emitted = r.outcomes()
    matched = r.cache.match_swap(r.slots, path, accepted, emitted)
    matched.taken[3] = min(int(matched.taken[3]), 2)
    rows = {} if r.features is None else {"features": r.features.view(B * (N + 1), 3)}
    if rows:
        rows["row_offsets"] = torch.arange(B + 1, dtype=torch.int32) * (N + 1)
    r.cache.post(r.slots, path, accepted, emitted, matched, **rows)
    assert np.array_equal(got["cache"], r.cache.block.numpy())  # every word of the cache and the mailbox

    assert (matched.branch >= 0).tolist() == [True, False, True, True, False, True]
    assert got["branch"].tolist() == matched.branch.tolist() and got["taken"].tolist() == matched.taken.tolist()
    assert got["kind"].tolist() == [1 if b >= 0 else -1 for b in matched.branch.tolist()]
    assert got["accepted"].tolist() == accepted.tolist() and got["count"].tolist() == (accepted + 1).tolist()
    want = r.inputs()
    for name in want:
        want[name][:] = -1 if name in ("parents", "kv_slots") else 0
    moves = np.full((2, B, N + 1), -1, np.int64)
    for b in range(B):
        nodes, tokens = r.walk(b)
        assert got["confirmed"].reshape(B, N + 1)[b].tolist() == tokens + [-1] * (N + 1 - len(tokens))
        n = int(matched.taken[b])
        tree = list(zip(matched.tokens[b, :n].tolist(), matched.parents[b, :n].tolist(), strict=True))
        r.fill(want, b, int(r.prefix[b]) + len(tokens), tokens[-1], tree)
        for i, node in enumerate(nodes):
            if node != i:
                moves[:, b, i + 1] = r.at(b, r.prefix[b] + 1 + node), r.at(b, r.prefix[b] + 1 + i)
    for name, x in want.items():
        assert np.array_equal(got[name].reshape(B, N + 1), x), name
    assert np.array_equal(got["sources"], moves[0].ravel()) and np.array_equal(got["targets"], moves[1].ravel())
    assert got["prefix_lens"].tolist() == [int(p) + len(r.walk(b)[1]) for b, p in enumerate(r.prefix)]


def test_verify_swap_with_slots_beyond_32_bits(host):
    """The numbers of pages far into a cache fit 32 bits; times the page size, they do not."""
    r = Rounds(2)
    r.publish([0, 2], 5)
    near = read(harness.run([r.case()], host)[0])
    r.table += 1 << 29
    x = r.case()
    far = read(harness.run([x], host)[0])
    for name in ("kv_slots", "sources", "targets"):
        moved = np.where(near[name] >= 0, near[name] + (1 << 29) * PAGE, -1)
        assert np.array_equal(far[name], moved), name
    assert (far["sources"] > 1 << 32).any() and np.array_equal(far["mask"], near["mask"])


def test_verify_swap_leaves_alone_what_it_must(host):
    r = Rounds(9)
    r.publish([0, 1, 2, 3], 3)
    before, slots = r.cache.block.clone(), r.slots.clone()
    r.slots[0] = -1  # no request
    r.sampled[1, :], r.sampled[2, :] = -1, VOCAB  # rows whose logits were NaN
    r.cache.length[slots[3]] = 60  # the log is full
    before = r.cache.block.clone()
    x = r.inputs()
    got = read(harness.run([r.case()], host)[0])
    assert (got["count"][:4] == 0).all() and (got["count"][4:] > 0).all()
    assert (got["branch"] == -1).all() and (got["taken"] == 0).all()
    for name, value in x.items():
        assert np.array_equal(got[name].reshape(B, N + 1)[:4], value[:4]), name
    r.cache.block.copy_(torch.from_numpy(got["cache"].copy()))
    after, was = r.cache, SpeculationCache(B + 2, 70, N, vocab=VOCAB, log=60)
    was.block.copy_(before)
    for name in ("round", "latest", "length", "active"):
        assert torch.equal(getattr(after, name)[slots[:4]], getattr(was, name)[slots[:4]])
    assert torch.equal(after.log[slots[:4]], was.log[slots[:4]])
