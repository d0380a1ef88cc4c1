"""Rounds of verify_swap over a speculation cache, in the form that the kernel takes."""

import numpy as np
import torch

from ssd.runtime.lanes.speculation_cache import SpeculationCache, key

N, B, VOCAB, PAGE = 40, 6, 1000, 16


class Rounds:
    """B requests, each with a tree of up to N nodes under verification, and the draft's branches for possible
    outcomes."""

    def __init__(self, seed, features=False, deep=False):
        """deep: request 0 accepts a whole chain of 36 nodes, request 1 the last of the largest possible number of
        children."""
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

    def random_tree(self, n):  # (token, parent) of each node; there are few tokens, so that siblings may be equal
        return [(int(self.rng.integers(0, 6)), int(self.rng.integers(-1, i))) for i in range(n)]

    def walk(self, b):
        """(accepted nodes, the tokens that the target put after the root and after each of them)."""
        path, tokens, node = [], [int(self.sampled[b, 0])], -1
        while True:
            children = [i for i, (t, p) in enumerate(self.tree[b]) if p == node and t == tokens[-1]]
            if not children:
                return path, tokens
            node = children[0]
            path.append(node)
            tokens.append(int(self.sampled[b, node + 1]))

    def publish(self, requests, n):
        """Publishes a branch of n nodes for the outcome of these requests, and other branches."""
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
        """The inputs for a verification of root and tree after a prefix of length start."""
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
        """(path, accepted, emitted) as ssd.kernels.verify returns them."""
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
