"""The CUDA kernels kv_copy and verify_swap, executed on the host; the CPU form of the cache says what is right."""

import numpy as np
import pytest
import torch
from cuda_host import harness
from test_kv_copy import MOVES

from ssd.runtime.lanes.speculation_cache import SpeculationCache, key


@pytest.fixture(scope="module")
def host():
    return harness.build()


@pytest.mark.parametrize("name", ["cycle", "path down"])
def test_kv_copy_with_offsets_beyond_32_bits(host, name):
    """Slots 2^31 units of 16 bytes apart would be too much even to reserve: 2^27 slots of 30 units, and two layers."""
    moves = np.array(MOVES[name], dtype=np.int64).T
    near = np.random.default_rng(1).integers(0, 1 << 16, (2, 12, 240)).astype(np.uint16)
    case = {"kernel": "kv_copy", "results": "k,v", "layers": 2, "layer": 12 * 30, "units": 30}
    case |= {"k": near, "v": near[::-1], "sources": moves[:, 0], "targets": moves[:, 1]}
    want, got = harness.run([case, {**case, "far": 1 << 27}], host)
    assert got == want and got["k"] != near.tobytes()


N, B, VOCAB, PAGE = 40, 6, 1000, 16


class Rounds:
    """B requests, each with a tree of up to N nodes under verification, and the draft's branches for what may come."""

    def __init__(self, seed, features=False, deep=False):
        """deep: request 0 takes a chain of 36 nodes to its end, request 1 the last of as many children as there are."""
        self.rng = np.random.default_rng(seed)
        self.features = torch.randint(1 << 40, (B, N + 1, 3)) if features else None
        size = {"feature_bytes": 24, "feature_window": 4} if features else {}
        self.cache = SpeculationCache(B + 2, 70, N, vocab=VOCAB, log=60, **size)
        self.slots = torch.from_numpy(self.rng.permutation(B + 2)[:B].copy())
        self.prefix = self.rng.integers(1, 5, B) * 5
        for slot, p in zip(self.slots.tolist(), self.prefix, strict=True):
            self.cache.assign(slot, slot, torch.arange(p + 1))
        self.table = self.rng.permutation(B * 8).reshape(B, 8).astype(np.int32)
        self.capacity = np.full(B, 8 * PAGE, dtype=np.int32)
        self.tree = [self.random_tree(int(self.rng.integers(0, N + 1))) for _ in range(B)]
        self.sampled = self.rng.integers(0, 6, (B, N + 1))
        if deep:
            self.tree[0] = [(int(self.sampled[0, i]), i - 1) for i in range(36)]
            self.tree[1] = [(100 + i, -1) for i in range(N)]
            self.sampled[1, 0] = 100 + N - 1

    def random_tree(self, n):  # (token, parent) of each node; few tokens, so that siblings may be equal
        return [(int(self.rng.integers(0, 6)), int(self.rng.integers(-1, i))) for i in range(n)]

    def walk(self, b):
        """Nodes accepted, and the tokens that the target put after the root and each of them."""
        path, tokens, node = [], [int(self.sampled[b, 0])], -1
        while True:
            children = [i for i, (t, p) in enumerate(self.tree[b]) if p == node and t == tokens[-1]]
            if not children:
                return path, tokens
            node = children[0]
            path.append(node)
            tokens.append(int(self.sampled[b, node + 1]))

    def publish(self, requests, n):
        """A branch of n nodes for the outcome of these requests, among others."""
        rows = len(requests)
        keys = torch.full((rows, 70), -1, dtype=torch.int64)
        tokens = torch.from_numpy(self.rng.integers(0, VOCAB, (rows, 70, n)))
        parents = torch.from_numpy(self.rng.integers(-1, np.arange(n), (rows, 70, n))).to(torch.int8)
        for i, b in enumerate(requests):
            path, emitted = self.walk(b)
            keys[i, :9] = key(torch.arange(9) % N, torch.arange(9) + 500)
            keys[i, int(self.rng.integers(9, 70))] = key(path[-1] if path else -1, emitted[-1])
        slots = self.slots[requests]
        epochs = self.cache.round[slots].clone()
        assert self.cache.publish(slots, epochs, keys, tokens, parents, kind=1) == rows

    def at(self, b, j):
        return int(self.table[b, j // PAGE]) * PAGE + j % PAGE

    def inputs(self):
        x = {
            "ids": np.zeros((B, N + 1), np.int64),
            "parents": np.full((B, N + 1), -1, np.int32),
            "positions": np.zeros((B, N + 1), np.int32),
            "kv_slots": np.full((B, N + 1), -1, np.int64),
            "mask": np.zeros((B, N + 1), np.uint64),
        }
        for b, tree in enumerate(self.tree):
            self.fill(x, b, int(self.prefix[b]), 7, tree)
        return x

    def fill(self, x, b, start, root, tree):
        """What a verification of root and tree at prefix length start is given."""
        for row, (token, parent) in enumerate([(root, None), *tree]):
            x["ids"][b, row] = token
            x["parents"][b, row] = -1 if parent is None else parent + 1
            x["mask"][b, row] = (0 if parent is None else int(x["mask"][b, parent + 1])) | 1 << row
            x["positions"][b, row] = start + int(x["mask"][b, row]).bit_count() - 1
            x["kv_slots"][b, row] = self.at(b, start + row)
        x["positions"][b, len(tree) + 1 :] = start

    def case(self, **more):
        return {
            "kernel": "verify_swap",
            "results": "cache,ids,parents,positions,kv_slots,mask,prefix_lens,count,confirmed,accepted,branch,taken,"
            "kind,sources,targets",
            "cache": self.cache.block,
            "sizes": np.array(self.cache.sizes, dtype=np.int64),
            "slots": self.slots.numpy(),
            "sampled": self.sampled,
            "features": None if self.features is None else self.features.numpy(),
            "prefix_lens": self.prefix.astype(np.int32),
            "capacity": self.capacity,
            "page_table": self.table,
            "table_row": 8,
            "page_size": PAGE,
            **self.inputs(),
            **more,
        }

    def outcomes(self):
        """path, accepted, emitted, as ssd.kernels.verify returns them."""
        path, emitted = torch.full((B, N), -1, dtype=torch.int8), torch.zeros(B, N + 1, dtype=torch.int64)
        accepted = torch.zeros(B, dtype=torch.int32)
        for b in range(B):
            nodes, tokens = self.walk(b)
            path[b, : len(nodes)] = torch.tensor(nodes, dtype=torch.int8)
            emitted[b, : len(tokens)] = torch.tensor(tokens)
            accepted[b] = len(nodes)
        return path, accepted, emitted


TYPES = {"cache": np.uint8, "ids": np.int64, "kv_slots": np.int64, "mask": np.uint64, "confirmed": np.int64}


def read(result):
    wide = {"sources", "targets"}
    return {n: np.frombuffer(v, TYPES.get(n, np.int64 if n in wide else np.int32)) for n, v in result.items()}


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
    """Pages far into a cache: their numbers fit 32 bits, times the page size they do not."""
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
    r.sampled[1, :], r.sampled[2, :] = -1, VOCAB  # rows whose logits were no numbers
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
