import shutil
import subprocess
import threading
import time
from pathlib import Path

import pytest
import torch

from ssd.runtime.lanes.speculation_cache import SpeculationCache, key

ROOT = Path(__file__).parents[3]
VOCAB = 1 << 20


def i64(*values):
    return torch.tensor(values, dtype=torch.int64)


def i32(*values):
    return torch.tensor(values, dtype=torch.int32)


def make(slots=2, branches=4, nodes=3, **sizes):
    return SpeculationCache(slots, branches, nodes, **{"vocab": VOCAB, "log": 64, **sizes})


def branches_of(cache, epoch, nodes=None):
    """Keys and tokens that name their epoch, branch and node: branch b answers outcome (b - 1, epoch * 100 + b)."""
    b = torch.arange(cache.branches)
    n = torch.arange(cache.nodes if nodes is None else nodes)
    return key(b - 1, epoch * 100 + b)[None], (epoch * 10_000 + b[:, None] * 100 + n)[None]


def outcome(*tokens, path=None):
    """(path, accepted, emitted) of one round: nodes 0, 1, ... are accepted, then the bonus token."""
    n = len(tokens) - 1
    nodes = list(range(n)) if path is None else path
    return torch.tensor([nodes], dtype=torch.int8).view(1, n), i32(n), i64(*tokens)[None]


def empty_round(token):
    return torch.empty(1, 0, dtype=torch.int8), i32(-1), i64(token)[None]


def finish(cache, slot, o):
    m = cache.match_swap(i64(slot), *o)
    cache.post(i64(slot), *o, m)
    return m


def test_a_hit_by_depth_then_a_miss():
    cache = make()
    assert cache.assign(0, 7, i64(11, 12, 13)) == 2
    [first] = cache.wait_outcomes(i64(0), i64(0), 0)
    assert (first.epoch, first.owner, first.token, first.length, first.hit) == (1, 7, 13, 3, False)
    assert cache.catch_up(0, first, 0).tolist() == [11, 12, 13] and cache.catch_up(0, first, 2).tolist() == [13]

    keys, tokens = branches_of(cache, 2)
    assert cache.wait_ready(i64(0), 0) == 0
    assert cache.publish(i64(0), i64(2), keys, tokens[:, :, :1].contiguous(), kind=1) == 1
    assert cache.wait_ready(i64(0), 0) == 1
    assert cache.extend(i64(0), i64(2), 1, tokens[:, :, 1:2].contiguous()) == 1
    o = outcome(14, 201)
    m = cache.match_swap(i64(0), *o)
    assert (m.branch.item(), m.taken.item(), m.kinds.item()) == (1, 2, 1)
    assert m.tokens[0, :2].tolist() == [20100, 20101] and m.parents[0, :2].tolist() == [-1, 0]
    # a depth that completes after the flip changes nothing that was taken
    assert cache.extend(i64(0), i64(2), 2, tokens[:, :, 2:].contiguous()) == 1
    cache.post(i64(0), *o, m)
    [hit] = cache.wait_outcomes(i64(0), i64(1), 0)
    assert hit == (2, 7, 1, 0, 201, 1, 2, 5, [20100, 20101], [-1, 0]) and hit.hit
    assert cache.catch_up(0, hit, 3).tolist() == [14, 201]

    keys, tokens = branches_of(cache, 3)
    cache.publish(i64(0), i64(3), keys, tokens)
    o = outcome(5)
    m = cache.match_swap(i64(0), *o)
    assert (m.branch.item(), m.taken.item()) == (-1, 0)
    m.taken[0], m.tokens[0, 0], m.parents[0, 0] = 1, 99, -1  # the fallback goes with the outcome
    cache.post(i64(0), *o, m)
    [miss] = cache.wait_outcomes(i64(0), i64(2), 0)
    assert not miss.hit and miss.tokens == [99] and miss.parents == [-1]
    assert cache.wait_outcomes(i64(0), i64(3), 0) == [None]


def test_a_fallback_by_the_draft_is_a_round_without_a_verification():
    cache = make()
    cache.assign(0, 1, i64(1, 2))
    finish(cache, 0, outcome(3))
    keys = key(i64(-1, 0, 0, 0), i64(3, -1, -1, -1))[None]
    assert keys.tolist() == [[3, -1, -1, -1]]
    cache.publish(i64(0), i64(3), keys, branches_of(cache, 3)[1])
    m = finish(cache, 0, empty_round(3))
    assert m.branch.item() == 0 and m.tokens.tolist() == [[30000, 30001, 30002]]
    [o] = cache.wait_outcomes(i64(0), i64(2), 0)
    assert (o.epoch, o.node, o.token, o.length) == (3, -1, 3, 3)


def test_trees_ragged_branches_and_empty_keys():
    cache = make()
    cache.assign(1, 0, i64(1))
    keys, tokens = branches_of(cache, 2)
    keys[0, 2] = -1
    parents = torch.full((1, 4, 3), -1, dtype=torch.int8)
    cache.publish(i64(1), i64(2), keys, tokens, parents, i32(3, 2, 3, 0)[None])
    assert cache.depth_ready[1 - cache.active[1], 1].tolist() == [3, 2, 0, 0]
    assert cache.match_swap(i64(1), *outcome(1, 202, path=[1])).branch.item() == -1  # no key
    assert cache.match_swap(i64(1), *outcome(1, 203, path=[2])).branch.item() == -1  # no node stands
    m = cache.match_swap(i64(1), *outcome(1, 201, path=[0]))
    assert m.taken.item() == 2 and m.parents[0, :2].tolist() == [-1, -1]


def test_rows_of_a_batch_are_alone():
    cache = make(slots=3)
    for slot in range(3):
        cache.assign(slot, slot, i64(slot))
    keys, tokens = branches_of(cache, 2)
    cache.publish(i64(2, 0), i64(2, 2), keys.repeat(2, 1), tokens.repeat(2, 1, 1))
    assert cache.wait_ready(i64(0, 1, 2), 0) == 2
    path = torch.tensor([[-1, -1], [0, -1], [1, -1]], dtype=torch.int8)
    o = path, i32(0, 1, 1), torch.stack([i64(200, -1, -1), i64(8, 201, -1), i64(8, 202, -1)])
    m = cache.match_swap(i64(0, 1, 2), *o)
    assert m.branch.tolist() == [0, -1, 2]
    cache.post(i64(0, 1, 2), *o, m)
    outcomes = cache.wait_outcomes(i64(0, 1, 2), i64(1, 1, 1), 0)
    assert [cache.catch_up(s, r, 1).tolist() for s, r in enumerate(outcomes)] == [[200], [8, 201], [8, 202]]
    assert [r.node for r in outcomes] == [-1, 0, 1]


def test_late_branch_of_an_earlier_owner_matches_nothing():
    cache = make()
    cache.assign(0, 1, i64(1))
    keys, tokens = branches_of(cache, 2)  # the draft prepares epoch 2 of owner 1
    old = cache.wait_outcomes(i64(0), i64(0), 0)[0]
    assert cache.assign(0, 2, i64(2)) == 3
    assert cache.publish(i64(0), i64(2), keys, tokens) == 0  # late, and told so
    assert cache.wait_ready(i64(0), 0) == 0
    assert cache.match_swap(i64(0), *outcome(200)).branch.item() == -1
    assert cache.catch_up(0, old, 0) is None
    cache.free(0)
    [free] = cache.wait_outcomes(i64(0), i64(2), 0)
    assert (free.epoch, free.owner, free.length) == (3, -1, 0)
    assert cache.round[0].item() == 4


def test_a_draft_that_lags_catches_up_from_the_log():
    cache = make()
    cache.assign(0, 1, i64(1))
    for n in range(2, 12):
        finish(cache, 0, outcome(n))
    [o] = cache.wait_outcomes(i64(0), i64(1), 0)
    assert o.epoch == 11 and cache.catch_up(0, o, 1).tolist() == list(range(2, 12))
    assert cache.publish(i64(0), i64(5), *branches_of(cache, 5)) == 0  # what it had begun is worth nothing
    assert cache.publish(i64(0), i64(12), *branches_of(cache, 12)) == 1
    assert cache.match_swap(i64(0), *outcome(3, 4, 1203, path=[0, 2])).branch.item() == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_features_of_the_newest_positions(dtype):
    cache = make(feature_bytes=8 * dtype.itemsize, feature_window=4)
    rows = torch.arange(10 * 8, dtype=torch.float32).view(10, 8).to(dtype)
    cache.assign(0, 1, torch.arange(6), rows[:6])
    o = outcome(6, 7, path=[1])
    hidden = torch.full((5, 8), -1, dtype=dtype)  # rows of another request, the root, nodes 0 and 1
    hidden[2], hidden[4] = rows[6], rows[7]
    cache.post(i64(0), *o, cache.match_swap(i64(0), *o), hidden, i32(2, 5))
    [last] = cache.wait_outcomes(i64(0), i64(0), 0)
    got = torch.empty(4, 8, dtype=dtype)
    assert cache.features_of(0, last, 4, got) and torch.equal(got, rows[4:8])
    assert not cache.features_of(0, last, 3, got)  # position 3 is gone
    o, m = outcome(6, 7, path=[1]), cache.match_swap(i64(0), *outcome(6, 7, path=[1]))
    with pytest.raises(ValueError, match="row_offsets: got none"):
        cache.post(i64(0), *o, m, hidden)
    with pytest.raises(ValueError, match="row_offsets: got 3 to 5 for request 0, wanted the rows of its path among 5"):
        cache.post(i64(0), *o, m, hidden, i32(3, 5))
    cache.assign(0, 2, torch.arange(1), rows[:1])
    assert not cache.features_of(0, last, 4, got)


def test_timed_waits_return_in_time_and_wake_early():
    cache = make()
    cache.assign(0, 1, i64(1))
    for wait in (
        lambda us: cache.wait_ready(i64(0), us),
        lambda us: cache.wait_outcomes(i64(0), i64(1), us),
    ):
        start = time.perf_counter()
        wait(20_000)
        assert 0.02 <= time.perf_counter() - start < 1.0
        start = time.perf_counter()
        wait(-5)
        assert time.perf_counter() - start < 0.5
    timer = threading.Timer(0.05, lambda: cache.publish(i64(0), i64(2), *branches_of(cache, 2)))
    timer.start()
    start = time.perf_counter()
    assert cache.wait_ready(i64(0), 30_000_000) == 1
    assert time.perf_counter() - start < 10
    timer.join()


def test_waits_hold_no_interpreter_lock():
    cache = make()
    cache.assign(0, 1, i64(1))
    waiter = threading.Thread(target=cache.wait_ready, args=(i64(0), 400_000))
    waiter.start()
    steps, start = 0, time.perf_counter()
    while waiter.is_alive() and time.perf_counter() - start < 5:
        steps += 1
        time.sleep(0)
    waiter.join()
    assert steps > 100


def test_two_lanes_in_two_threads():
    """The token at position i is i, so the draft predicts every bonus token, except at node 2."""
    rounds, hits, errors, stop = 1500, 0, [], threading.Event()
    cache = make(log=4 * rounds)
    nodes = torch.arange(4) - 1

    def draft():
        seen, length = 0, 0
        try:
            while not stop.is_set():
                [o] = cache.wait_outcomes(i64(0), i64(seen), 1000)
                if o is None:
                    continue
                assert cache.catch_up(0, o, length).tolist() == list(range(length, o.length))
                seen, length, epoch = o.epoch, o.length, o.epoch + 1
                keys = key(nodes, torch.where(nodes < 2, length + 1 + nodes, -1))[None]
                tokens = (epoch * 100 + nodes[:, None] * 10 + torch.arange(3))[None]
                cache.publish(i64(0), i64(epoch), keys, tokens[:, :, :1].contiguous())
                cache.extend(i64(0), i64(epoch), 1, tokens[:, :, 1:].contiguous())
        except Exception as error:
            errors.append(error)

    cache.assign(0, 1, i64(0))
    lane = threading.Thread(target=draft)
    lane.start()
    length = 1
    for epoch in range(2, rounds):
        if epoch % 8:
            cache.wait_ready(i64(0), 20_000)
        node = epoch % 4 - 1
        m = finish(cache, 0, outcome(*range(length, length + node + 2)))
        n = m.taken.item()
        assert m.tokens[0, :n].tolist() == [epoch * 100 + node * 10 + i for i in range(n)]
        assert (n > 0) == (m.branch.item() >= 0) and (node < 2 or not n)
        hits += n > 0
        length += node + 2
    stop.set()
    lane.join(10)
    assert not errors and not lane.is_alive()
    assert hits > rounds // 4


def test_opcheck():
    cache = make()
    cache.assign(0, 1, i64(1))
    rows = cache.match_swap(i64(0), *outcome(1))
    args = (cache.block, i64(0), *outcome(1), *rows)
    checks = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(torch.ops.ssd.spec_cache_match_swap.default, args, test_utils=checks)


def publish(cache, epoch=2, keys=None, tokens=None, **more):
    default = branches_of(cache, epoch)
    cache.publish(
        i64(0), i64(epoch), default[0] if keys is None else keys, default[1] if tokens is None else tokens, **more
    )


@pytest.mark.parametrize(
    "error,match,call",
    [
        (ValueError, "nodes: got 64, wanted 1 to 63", lambda c: make(nodes=64)),
        (ValueError, "feature_bytes: got 12", lambda c: make(feature_bytes=12)),
        (ValueError, "slot: got 9, wanted 0 to 1", lambda c: c.assign(9, 0, i64(1))),
        (ValueError, "owner: got -1", lambda c: c.assign(0, -1, i64(1))),
        (ValueError, "tokens: got id -3", lambda c: c.assign(0, 1, i64(-3))),
        (ValueError, "tokens: got 65 tokens, wanted at most 64", lambda c: c.assign(0, 1, torch.arange(65))),
        (TypeError, "tokens: got dtype", lambda c: c.assign(0, 1, i32(1))),
        (ValueError, "features: got rows of 8 bytes", lambda c: c.assign(0, 1, i64(1), torch.zeros(1, 2))),
        (ValueError, "slots: got 2", lambda c: c.match_swap(i64(2), *outcome(0))),
        (TypeError, "accepted: got dtype", lambda c: c.match_swap(i64(0), outcome(0)[0], i64(0), i64(0)[None])),
        (ValueError, "accepted: got 4, wanted -1 to 3", lambda c: c.match_swap(i64(0), *outcome(1, 1, 1, 1, 1))),
        (ValueError, "path: got node 3, wanted 0 to 2", lambda c: c.match_swap(i64(0), *outcome(1, 1, path=[3]))),
        (ValueError, "emitted: got id -1", lambda c: c.match_swap(i64(0), *outcome(-1))),
        (ValueError, "slots: got 1, a free slot", lambda c: finish(c, 1, outcome(0))),
        (ValueError, "epochs: got 3, wanted at most 2", lambda c: publish(c, 3)),
        (ValueError, "epochs: got 1 for slot 0", lambda c: c.extend(i64(0), i64(1), 0, branches_of(c, 1)[1])),
        (ValueError, f"tokens: got id {VOCAB}", lambda c: publish(c, tokens=torch.full((1, 4, 1), VOCAB))),
        (ValueError, "keys: got node 3", lambda c: publish(c, keys=key(i64(3, 0, 0, 0), 1)[None])),
        (
            ValueError,
            "parents: got 2 for node 0",
            lambda c: publish(c, parents=torch.full((1, 4, 3), 2).to(torch.int8)),
        ),
        (ValueError, "counts: got 4, wanted 0 to 3", lambda c: publish(c, counts=i32(4, 0, 0, 0)[None])),
        (ValueError, "kind: got 3", lambda c: publish(c, kind=3)),
        (
            ValueError,
            "cache: got an uninitialised block",
            lambda c: torch.ops.ssd.spec_cache_free(torch.zeros(256).byte(), 0),
        ),
    ],
)
def test_bad_arguments_are_named_and_change_nothing(error, match, call):
    cache = make()
    cache.assign(0, 1, i64(1))
    before = cache.block.clone()
    with pytest.raises(error, match=match):
        call(cache)
    assert torch.equal(cache.block, before)


def test_an_epoch_is_published_once_and_depths_in_order():
    cache = make()
    cache.assign(0, 1, i64(1))
    keys, tokens = branches_of(cache, 2, 1)
    cache.publish(i64(0), i64(2), keys, tokens)
    with pytest.raises(ValueError, match="epochs: got 2 for slot 0, wanted more than 2"):
        cache.publish(i64(0), i64(2), keys, tokens)
    with pytest.raises(ValueError, match="first: got 2 for branch 0 of slot 0, wanted 1"):
        cache.extend(i64(0), i64(2), 2, tokens)


def test_views_are_the_sections_of_the_header():
    cache = make(fan_out=2, q_width=5, feature_bytes=16)
    cache.assign(1, 9, i64(4, 5), torch.ones(2, 4))
    assert cache.owner.tolist() == [-1, 9] and cache.length.tolist() == [0, 2] and cache.latest.tolist() == [0, 1]
    assert cache.log[1, :2].tolist() == [4, 5] and cache.features.view(torch.float32)[1, :2].eq(1).all()
    cache.publish(i64(1), i64(2), *branches_of(cache, 2))
    assert cache.ready[:, 1].tolist() == [0, 2] and cache.kind[:, 1].tolist() == [0, 0]
    assert cache.tokens[1, 1, 3].tolist() == [20300, 20301, 20302]
    assert cache.candidates.shape == (2, 2, 4, 3, 2) and cache.q.shape == (2, 2, 4, 3, 5)
    end = cache.candidates.data_ptr() + cache.candidates.nbytes - cache.block.data_ptr()
    assert 0 <= cache.block.numel() - end < 64


def test_header_compiles_as_cuda(tmp_path):
    if not shutil.which("nvcc"):
        pytest.skip("nvcc is not installed: the CUDA form of the header is not compiled")
    source = tmp_path / "spec_cache.cu"
    source.write_text(
        """#include <ssd/spec_cache.h>
__global__ void hit(void* base, ssd::SpecSizes d, int64_t* out) {
  ssd::SpecCache c(base, d);
  ssd::Match m = c.match_swap(0, out[0], out[1]);
  c.post(0, out[0], out[1], m.branch, nullptr, 0);
  out[2] = c.read_outcome(0, out + 3);
}
"""
    )
    command = ["nvcc", "-std=c++20", "-arch=sm_80", f"-I{ROOT / 'csrc' / 'include'}", "-c", source]
    done = subprocess.run([*command, "-o", tmp_path / "o"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "o").stat().st_size > 0
