"""The verify lane's side of SSD: what is verified next comes from the speculation cache (Kumar, Dao, May,
arXiv 2603.03251), and a draft lane that fails costs time, never a token."""

from collections.abc import Callable, Iterator
from functools import partial
from time import perf_counter

import numpy as np
import torch

from ssd.kernels import Kind

from ..engine.features import Features
from ..engine.scheduler import Plan
from ..engine.speculator import Part, Proposal, Round
from ..engine.tree import Tree
from .draft_lane import DraftLane
from .lane_counts import LaneCounts
from .lane_slot import LaneSlot, LaneSlots
from .retry_value import RetryValue
from .speculation_cache import Matched, SpeculationCache
from .supervisor import LaneSupervisor


class VerifyLane:
    """A speculator whose proposals are prepared by another thread while the target verifies.

    start: makes a cache and a draft lane for it from the owners of LaneSlots; the lane is not started yet. slots:
    sequences at most. layers: of the target whose features the draft reads. depth: tokens of a fallback at most. vocab:
    token ids are below it. fallback: a proposer that costs nothing, or None. lockstep: both lanes take turns in the
    calling thread, so that the draft always finishes. ids: the target's id of each output of the draft, None where they
    are the same. history: (FanOut, file that keeps it) or None.
    """

    def __init__(
        self, start: Callable[[dict[int, LaneSlot]], tuple[SpeculationCache, DraftLane]], *, slots: int, layers,
        depth: int, vocab: int, fallback=None, lockstep: bool = False, ids=None, history=None,
    ):  # fmt: skip
        self.layers, self.depth, self.vocab = layers, depth, vocab
        self.fallback, self.ids, self.history = fallback, ids, history
        self.slots, self.counts, self.retry = LaneSlots(slots), LaneCounts(), RetryValue()
        self.features: Features | None = None  # of the target
        self.trace = None
        self.supervisor = LaneSupervisor(partial(start, self.slots.owners), lockstep)

    def attach(self, features: Features) -> None:
        self.features = features

    def record(self, trace) -> None:
        self.trace = trace
        self.supervisor.record(trace)

    @property
    def lane(self) -> DraftLane | None:
        return self.supervisor.lane

    @property
    def runner(self):
        return self.lane.runner if self.lane else None

    def warm_up(self) -> Iterator[None]:
        return self.lane.warm_up()

    @property
    def cache(self) -> SpeculationCache | None:
        return self.supervisor.cache

    def close(self) -> None:
        """Stop the draft lane, and keep what was learnt."""
        if self.lane:
            self.supervisor.close()
            if self.history and self.counts.hit_rate is not None:
                fan_out, file = self.history
                fan_out.write(file)

    def pause(self) -> None:
        """Let the draft lane sleep; the next proposal tells it of the sequences anew."""
        self._forget_all()
        self.supervisor.sleep()

    def release(self, sequence) -> None:
        self._forget(sequence)
        if not self.slots:
            self.supervisor.sleep()  # until there is something to prepare
        if self.fallback:
            self.fallback.release(sequence)

    def stats(self) -> dict:
        counts, lane = self.counts, self.lane
        return counts.stats() | {
            "draft_ms": 1e3 * lane.seconds / lane.rounds if lane and lane.rounds else 0.0,
            "wait_ms": 1e3 * counts.wait_seconds / counts.rounds if counts.rounds else 0.0,
        }

    # ---- propose ----

    def propose(self, plan: Plan) -> Proposal:
        """What the cache had for each sequence that decodes."""
        begin = perf_counter()
        self.supervisor.wake()
        if reason := self.supervisor.fault(bool(self.slots)):
            self._roll_back(reason)
        if self.lane:
            for sequence, _ in plan:
                if sequence.decoding and sequence not in self.slots:
                    self._assign(sequence)
            self._take_turn()
            if waiting := self.slots.waiting:
                self._fetch(waiting)
                self._take_turn()
        trees: list[Tree | None] = []
        for sequence, _ in plan:
            slot = self.slots.get(sequence)
            tree = slot.next if slot else None
            if tree is not None and not plan.decoding and not tree.is_chain:
                tree = None  # its outcome is that of the root alone
            trees.append(tree)
        return Proposal(trees, perf_counter() - begin)

    def _take_turn(self) -> None:
        """Let the draft lane work now, where it has no thread of its own."""
        if self.supervisor.lockstep and self.lane and (reason := self.supervisor.turn()):
            self._roll_back(reason)

    def _assign(self, sequence) -> None:
        n = sequence.num_tokens
        tokens = torch.from_numpy(sequence.tokens[:n].copy())
        # beside each token the hidden state that drew it, the token before's
        features = self.features.of(sequence, self.layers)[: n - 1] if self.layers else None
        slot = self.slots.assign(sequence)  # once there is memory for all that
        self.cache.assign(slot.index, slot.owner, tokens, features)

    def _forget(self, sequence) -> None:
        slot = self.slots.forget(sequence)
        if slot and self.cache:
            self.cache.free(slot.index)

    def _forget_all(self) -> None:
        for sequence in list(self.slots.by_sequence):
            self._forget(sequence)

    def _roll_back(self, reason: str) -> None:
        """Drop what the draft lane knew, and start another one afresh."""
        begin = perf_counter()
        self.supervisor.give_up(reason)
        self._forget_all()
        self.supervisor.replace()
        self.counts.recoveries["rollback"].add(perf_counter() - begin)
        if self.trace:
            self.trace.span("verify", "rollback", begin, perf_counter(), reason=reason)

    def _fetch(self, waiting: list[LaneSlot]) -> None:
        """Wait for the speculations that the draft makes after misses, as long as they are worth it."""
        begin, n = perf_counter(), len(waiting)
        indices = torch.tensor([slot.index for slot in waiting])
        self.cache.wait_ready(indices, int(1e6 * self.retry.pass_seconds.get(0.02)))
        emitted = torch.full((n, self.cache.nodes + 1), -1)
        emitted[:, 0] = torch.tensor([int(s.sequence.tokens[s.sequence.num_tokens - 1]) for s in waiting])
        path = torch.full((n, self.cache.nodes), -1, dtype=torch.int8)
        accepted = torch.full((n,), -1, dtype=torch.int32)
        matched = self.cache.match_swap(indices, path, accepted, emitted)
        for k, slot in enumerate(waiting):
            self._shorten(matched, k, self._room(slot.sequence))
            slot.waits = False
        self.cache.post(indices, path, accepted, emitted, matched)
        for k, slot in enumerate(waiting):
            self._take(slot, matched, k, "fallback")
        seconds = perf_counter() - begin
        self.retry.answer.add(seconds)
        self.counts.recoveries["local_retry"].add(seconds / n, n)
        self.counts.wait_seconds += seconds
        if self.trace:
            self.trace.span("verify", "local retry", begin, begin + seconds, sequences=n)

    # ---- observe ----

    def observe(self, round: Round) -> None:
        """Match, swap, and tell the draft lane what came out."""
        if round.plan.decoding:
            self.retry.pass_seconds.add(round.seconds)
        parts = [part for part in round if part.sequence in self.slots and part.sequence.decoding]
        if not parts or self.lane is None:
            return
        slots = [self.slots[part.sequence] for part in parts]
        indices, rows = torch.tensor([slot.index for slot in slots]), torch.tensor([part.row for part in parts])
        path, accepted, emitted = (t[rows] for t in round.verified[:3])
        matched = self.cache.match_swap(indices, path, accepted, emitted)
        missed = [slot for slot, branch in zip(slots, matched.branch.tolist(), strict=True) if branch < 0]
        ask = len(missed) == len(slots) and self.retry.pays()
        for k, (slot, part) in enumerate(zip(slots, parts, strict=True)):
            self._shorten(matched, k, self._room(slot.sequence) - len(part.emitted))
            if slot in missed:
                slot.waits = ask
                if not ask:
                    self._fall_back(slot, part, matched, k)
        self.cache.post(indices, path, accepted, emitted, matched, *self._feature_rows(round, parts))
        self._count(slots, missed, parts)
        for k, (slot, part) in enumerate(zip(slots, parts, strict=True)):
            if slot.next and slot.next.drafted:
                self.retry.gain.add(len(part.emitted))
            self._take(slot, matched, k, "hit")
            if self.trace:
                name, tokens = "miss" if slot in missed else "hit", len(slot.next or ())
                self.trace.instant("verify", name, accepted=len(part.path), next=tokens)

    def _feature_rows(self, round: Round, parts: list[Part]) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Features of the rows of these sequences, and where each sequence's begin; for drafts that read them."""
        if not self.layers:
            return None, None
        rows = torch.tensor([row for part in parts for row in part.rows])
        offsets = np.cumsum([0, *(len(part.rows) for part in parts)])
        return round.features[rows], torch.tensor(offsets, dtype=torch.int32)

    def _count(self, slots: list[LaneSlot], missed: list[LaneSlot], parts: list[Part]) -> None:
        counts, told = self.counts, [slot for slot in slots if not slot.fresh]
        misses = sum(slot in missed for slot in told)
        counts.rounds += 1
        counts.misses += misses
        counts.hits += len(told) - misses
        counts.verified_rows += sum(len(part.rows) for part in parts)
        for slot in slots:
            slot.fresh = False

    def _fall_back(self, slot: LaneSlot, part: Part, matched: Matched, k: int) -> None:
        """Write a proposal that costs nothing where the branch would be."""
        if self.fallback is None:
            return
        room = self._room(slot.sequence) - len(part.emitted)
        tree = self.fallback.after(slot.sequence, part.emitted, min(self.depth, room))
        matched.taken[k] = len(tree)
        if tree:
            matched.tokens[k, : len(tree)] = torch.tensor(tree.tokens, dtype=torch.int32)
            matched.parents[k, : len(tree)] = torch.tensor(tree.parents, dtype=torch.int8)

    @staticmethod
    def _room(sequence) -> int:
        """Tokens that may still be speculated: the bonus token needs room too."""
        return len(sequence.tokens) - sequence.num_tokens - 1

    def _shorten(self, matched: Matched, k: int, room: int) -> None:
        """Leave no more levels of a branch than there is room for."""
        taken, room = int(matched.taken[k]), max(room, 0)
        if taken > room:
            depth = Tree(range(taken), matched.parents[k, :taken].tolist()).depth
            matched.taken[k] = sum(d <= room for d in depth)

    def _take(self, slot: LaneSlot, matched: Matched, k: int, origin: str) -> None:
        """Set what a sequence verifies next; origin: what branches from the cache are. Tokens out of range make no
        speculation, whoever wrote them."""
        begin = perf_counter()
        tokens, branch = matched.tokens[k, : int(matched.taken[k])].tolist(), int(matched.branch[k])
        slot.next = None
        if not all(0 <= t < self.vocab for t in tokens):
            self.counts.recoveries["rollback"].add(perf_counter() - begin)
        elif tokens:
            tree = slot.next = Tree(tokens, matched.parents[k, : len(tokens)].tolist())
            tree.drafted, tree.ids = branch >= 0, self.ids
            tree.origin = origin if tree.drafted else "fallback"
            tree.kind = Kind(int(matched.kinds[k])) if tree.drafted else Kind.DETERMINISTIC
            if tree.kind == Kind.SAMPLED:
                q = self.cache.q[int(self.cache.active[slot.index]), slot.index, branch, : len(tokens)].clone()
                tree.q = dict(zip(tree.parents, q, strict=True))
