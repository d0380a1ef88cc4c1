"""The speculation cache and the mailbox between the two lanes, a thin handle on torch.ops.ssd.spec_cache_*.

One thread is the verify lane of a cache and one the draft lane; a draft lane that is given up gets no second
chance on the same cache: make a new one. Layout: csrc/include/ssd/spec_cache.h; protocol: docs/protocol.md.

Node -1 is the root of a speculation, node i its token i, as in ssd.kernels.verify: a chain has parents -1, 0, 1.
An epoch is one outcome of a slot; epochs never restart. Waits hold no interpreter lock.
"""

from typing import NamedTuple

import torch

from ssd.kernels import library  # noqa: F401

ops = torch.ops.ssd


class Outcome(NamedTuple):
    """One outcome of a slot, as the draft lane reads it."""

    epoch: int
    owner: int  # -1: the slot is free
    born: int  # names this life of the slot
    node: int  # deepest accepted node, -1: the root
    token: int  # bonus token
    branch: int  # branch adopted, -1: a miss
    taken: int  # tokens of the next verification, of the branch or else of a fallback
    length: int  # confirmed tokens in the log
    tokens: list[int]  # [taken]
    parents: list[int]  # [taken]

    @property
    def hit(self) -> bool:
        return self.branch >= 0


class Matched(NamedTuple):
    """What match_swap found: the next speculations. The tensors are buffers of the cache, valid until its next
    match_swap of as many rows."""

    branch: torch.Tensor  # int32 [B], -1: a miss
    taken: torch.Tensor  # int32 [B], nodes that stood, 0 on a miss
    tokens: torch.Tensor  # int32 [B, N], the first taken of a row are set
    parents: torch.Tensor  # int8 [B, N]
    kinds: torch.Tensor  # int8 [B], ssd.kernels.verify.Kind, as published


class SpeculationCache:
    """Room for `slots` sequences, `branches` predicted outcomes each and `nodes` tokens a branch, allocated once.

    vocab: token ids are below it; log: confirmed tokens of a sequence at most; fan_out: candidate ids kept for a
    node; feature_bytes: bytes of one feature row (hidden size times item size, a multiple of 8; 0: none);
    feature_window: newest positions whose features are kept (default: log); q_width: draft probabilities kept for
    a node (0: none). Raises ValueError or TypeError that names the argument, here and in every method.

    Views on the block that the draft lane writes before it publishes: candidates int32 [2, S, C, N, F] and q float32
    [2, S, C, N, q_width]. Views to look at: keys, tokens, parents, depth_ready, ready, active.
    """

    def __init__(
        self,
        slots: int,
        branches: int,
        nodes: int,
        *,
        vocab: int,
        log: int,
        fan_out: int = 0,
        feature_bytes: int = 0,
        feature_window: int | None = None,
        q_width: int = 0,
    ):
        if feature_bytes % 8:
            raise ValueError(f"feature_bytes: got {feature_bytes}, wanted a multiple of 8")
        window = (log if feature_window is None else feature_window) if feature_bytes else 0
        self.sizes = [slots, branches, nodes, fan_out, log, vocab, feature_bytes // 8, window, q_width]
        self.slots, self.branches, self.nodes = slots, branches, nodes
        offsets = ops.spec_cache_layout(self.sizes)
        self.block = torch.empty(offsets[-1], dtype=torch.uint8)
        slab = (2, slots, branches)
        sections = {  # the order of SSD_SPEC_SECTIONS
            "header": (torch.int64, (16,)),
            "round": (torch.int64, (slots,)),
            "owner": (torch.int64, (slots,)),
            "length": (torch.int64, (slots,)),
            "active": (torch.int32, (slots,)),
            "latest": (torch.int64, (slots,)),
            "born": (torch.int64, (slots,)),
            "claim": (torch.int64, (slots,)),
            "record": (torch.int64, (2, slots, len(Outcome._fields) - 2 + nodes)),
            "log": (torch.int32, (slots, log)),
            "features": (torch.int64, (slots, window, feature_bytes // 8)),
            "ready": (torch.int64, (2, slots)),
            "kind": (torch.int32, (2, slots)),
            "depth_ready": (torch.int32, slab),
            "keys": (torch.int64, slab),
            "tokens": (torch.int32, (*slab, nodes)),
            "parents": (torch.int8, (*slab, nodes)),
            "q": (torch.float32, (*slab, nodes, q_width)),
            "candidates": (torch.int32, (*slab, nodes, fan_out)),
        }
        for at, (name, (dtype, shape)) in zip(offsets[:-1], sections.items(), strict=True):
            size = torch.Size(shape).numel() * dtype.itemsize
            setattr(self, name, self.block[at : at + size].view(dtype).view(shape))
        width = self.record.shape[-1]
        self._matched = {b: self._buffers(b) for b in range(1, slots + 1)}
        self._records = torch.zeros(slots, width, dtype=torch.int64)
        self.reset()

    def _buffers(self, rows: int) -> Matched:
        shape = (rows, self.nodes)
        return Matched(
            torch.zeros(rows, dtype=torch.int32),
            torch.zeros(rows, dtype=torch.int32),
            torch.zeros(shape, dtype=torch.int32),
            torch.zeros(shape, dtype=torch.int8),
            torch.zeros(rows, dtype=torch.int8),
        )

    def reset(self) -> None:
        """Forget everything, epochs too: only while neither lane runs."""
        ops.spec_cache_reset(self.block, self.sizes)

    # ---- verify lane ----

    def assign(self, slot: int, owner: int, tokens: torch.Tensor, features: torch.Tensor | None = None) -> int:
        """Give a slot to a sequence whose confirmed tokens (int64 [n], the root last) start its log.

        owner: a number of the caller's, 0 or more; features [m, hidden]: of the last m tokens.
        Posts an outcome with node -1 and the root as token. Returns the epoch of the first round.
        """
        return ops.spec_cache_assign(self.block, slot, owner, tokens, features)

    def free(self, slot: int) -> None:
        """Take a slot from its owner; the draft lane learns it as an outcome of owner -1."""
        ops.spec_cache_free(self.block, slot)

    def match_swap(
        self, slots: torch.Tensor, path: torch.Tensor, accepted: torch.Tensor, emitted: torch.Tensor
    ) -> Matched:
        """Look up the outcomes of the rounds in progress and, where one hits, make its slab the active one.

        slots: int64 [B], distinct; path int8 [B, P], accepted int32 [B], emitted int64 [B, P + 1]: from verify.
        accepted -1: a round without a verification, whose outcome is the root with token emitted[b, 0].
        """
        m = self._matched.get(slots.numel()) or self._buffers(slots.numel())
        ops.spec_cache_match_swap(self.block, slots, path, accepted, emitted, *m)
        return m

    def post(
        self,
        slots: torch.Tensor,
        path: torch.Tensor,
        accepted: torch.Tensor,
        emitted: torch.Tensor,
        matched: Matched,
        features: torch.Tensor | None = None,
        row_offsets: torch.Tensor | None = None,
    ) -> None:
        """Append the emitted tokens to the logs and post the outcomes; the next rounds begin.

        matched: from match_swap of the same rows; the caller may shorten taken, and on a miss write a fallback to
        taken, tokens and parents. features [R, hidden], row_offsets int32 [B + 1]: hidden states of the verification;
        the row that drew a token is kept beside it. accepted -1: nothing is appended.
        """
        m = matched
        ops.spec_cache_post(
            self.block, slots, path, accepted, emitted, m.branch, m.taken, m.tokens, m.parents, features, row_offsets
        )

    def wait_ready(self, slots: torch.Tensor, timeout_us: int) -> int:
        """Wait until branches for the round in progress stand in every slot. Returns in how many they do."""
        return ops.spec_cache_wait_ready(self.block, slots, timeout_us)

    # ---- draft lane ----

    def publish(
        self,
        slots: torch.Tensor,
        epochs: torch.Tensor,
        keys: torch.Tensor,
        tokens: torch.Tensor,
        parents: torch.Tensor | None = None,
        counts: torch.Tensor | None = None,
        kind: int = 0,
    ) -> int:
        """Publish branches for the outcomes of an epoch, with their first n nodes.

        slots: int64 [B]; epochs: int64 [B], the newest outcome's plus 1; keys: int64 [B, C] from key(), -1: none;
        tokens: int64 [B, C, n]; parents: int8 [B, C, n], default chains; counts: int32 [B, C] of these n nodes,
        default n; kind: ssd.kernels.verify.Kind of the branches. An epoch is published once.
        Returns in how many rows the epoch is still the round in progress.
        """
        return ops.spec_cache_publish(self.block, slots, epochs, keys, tokens, parents, counts, kind)

    def extend(
        self,
        slots: torch.Tensor,
        epochs: torch.Tensor,
        first: int,
        tokens: torch.Tensor,
        parents: torch.Tensor | None = None,
        counts: torch.Tensor | None = None,
    ) -> int:
        """Publish n more nodes of every branch after its first `first`; otherwise as publish."""
        return ops.spec_cache_extend(self.block, slots, epochs, first, tokens, parents, counts)

    def wait_outcomes(self, slots: torch.Tensor, seen: torch.Tensor, timeout_us: int) -> list[Outcome | None]:
        """Wait until a slot has an outcome newer than seen (int64 [B], epochs); a row without one gives None.

        Outcomes may be skipped: the log tells what was confirmed meanwhile.
        """
        records = self._records[: slots.numel()]
        ops.spec_cache_wait_outcomes(self.block, slots, seen, timeout_us, records)
        return [_outcome(r) if r[0] else None for r in records.tolist()]

    def catch_up(self, slot: int, outcome: Outcome, start: int) -> torch.Tensor | None:
        """Confirmed tokens from log position start up to the outcome, int64; None: that owner is gone."""
        tokens = torch.empty(max(outcome.length - start, 0), dtype=torch.int64)
        return tokens if ops.spec_cache_read_log(self.block, slot, outcome.born, start, tokens) else None

    def features_of(self, slot: int, outcome: Outcome, start: int, out: torch.Tensor) -> bool:
        """Copy the features of positions from start into out [n, hidden]; False: owner or features are gone."""
        return ops.spec_cache_read_features(self.block, slot, outcome.born, start, out)


def key(node, token):
    """Key of outcome (node, token), integers or int64 tensors; -1, no outcome, for token -1."""
    return (node + 1) << 32 | token


def _outcome(record: list[int]) -> Outcome:
    words = record[8 : 8 + record[6]]
    return Outcome(*record[:8], [w & 0xFFFFFFFF for w in words], [(w >> 32) - 1 for w in words])


@torch.library.register_fake("ssd::spec_cache_match_swap")
@torch.library.register_fake("ssd::spec_cache_post")
@torch.library.register_fake("ssd::spec_cache_reset")
@torch.library.register_fake("ssd::spec_cache_free")
def _(*args):
    return None
