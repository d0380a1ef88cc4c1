"""The verify lane's side of SSD: what is verified next comes from the speculation cache (Kumar, Dao, May,
arXiv 2603.03251), and a draft lane that fails costs time, never a token."""

from collections.abc import Callable
from functools import partial
from time import perf_counter

import numpy as np
import torch

from ssd.kernels import Kind, Verified

from ..engine.features import Features
from ..engine.metrics import Recoveries
from ..engine.scheduler import Work
from ..engine.tree import Tree
from ..engine.verify import verify_by_rejection, verify_coupled
from ..moving_average import MovingAverage
from .draft_lane import DraftLane, Request
from .speculation_cache import Matched, SpeculationCache
from .supervisor import LaneSupervisor


class VerifyLane:
    """A speculator whose proposals are prepared by another thread while the target verifies.

    start: makes a cache and a draft lane for it, from (requests, wants); the lane is not started yet. layers: of the
    target whose features the draft reads. vocab: token ids are below it. fallback: a proposer
    that costs nothing, or None. lockstep: both lanes in the calling thread, the draft always finishes. rejection:
    verify by rejection sampling; ids: then the target's id of each output of the draft, or None. history: (FanOut, file
    that keeps it) or None.
    """

    def __init__(
        self, start: Callable[[dict, np.ndarray], tuple[SpeculationCache, DraftLane]], *, slots: int, layers,
        depth: int, vocab: int, fallback=None, lockstep: bool = False, rejection: bool = False, ids=None,
        history=None,
    ):  # fmt: skip
        self.layers, self.depth, self.fallback = layers, depth, fallback
        self.vocab, self.rejection, self.ids, self.history = vocab, rejection, ids, history
        self.free, self.slot_of = list(range(slots))[::-1], {}
        self.requests: dict[int, Request] = {}
        self.owner_of: dict[object, int] = {}
        self.owners = 0
        self.features: Features | None = None  # of the target
        self.next: dict[object, Tree] = {}
        self.waiting: list = []  # sequences that missed and wait for a speculation of their own
        self.wants = np.zeros(slots, bool)
        self.seconds = self.wait_seconds = 0.0
        self.hits = self.misses = self.verified_rows = self.rounds = 0
        self.first: set = set()  # sequences whose first round is still to come: it counts as neither hit nor miss
        self.pass_seconds = MovingAverage()
        self.answer = MovingAverage()  # seconds of a speculation after a miss
        self.gain = MovingAverage(0.1)  # tokens that such a speculation brought
        self.recoveries = {name: Recoveries() for name in ("local_retry", "rollback", "model_switch")}
        self.verified: Verified | None = None
        self.trace = None
        self.supervisor = LaneSupervisor(partial(start, self.requests, self.wants), lockstep)

    def attach(self, features: Features) -> None:
        """Where the engine keeps the target's features."""
        self.features = features

    def record(self, trace) -> None:
        """Write spans of both lanes into a Trace from now on."""
        self.trace = self.supervisor.trace = trace
        if self.supervisor.lane:
            self.supervisor.lane.trace = trace

    @property
    def failures(self) -> int:
        """Times that the draft lane failed."""
        return self.supervisor.failures

    @property
    def lane(self) -> DraftLane | None:
        return self.supervisor.lane

    @property
    def runner(self):
        return self.lane.runner if self.lane else None

    @property
    def cache(self) -> SpeculationCache | None:
        return self.supervisor.cache

    def close(self) -> None:
        """Stop the draft lane, and keep what was learnt."""
        if self.lane:
            self.supervisor.close()
            if self.history and self.hits + self.misses:
                self.history[0].write(self.history[1])

    def pause(self) -> None:
        """Let the draft lane sleep; sequences are told to it anew when the next proposal is asked for."""
        for sequence in list(self.slot_of):
            self._forget(sequence)
        self.supervisor.sleep()

    def _roll_back(self, reason: str) -> None:
        """What the draft lane knew is dropped, another one starts afresh."""
        begin = perf_counter()
        self.supervisor.give_up(reason)
        for sequence in list(self.slot_of):
            self._forget(sequence)
        self.supervisor.replace()
        self.recoveries["rollback"].seconds.append(perf_counter() - begin)
        if self.trace:
            self.trace.span("verify", "rollback", begin, perf_counter(), reason=reason)

    def _forget(self, sequence) -> None:
        slot = self.slot_of.pop(sequence, None)
        if slot is not None:
            self.free.append(slot)
            self.wants[slot] = False  # nor does the next owner wait for what this one did
            self.requests.pop(self.owner_of.pop(sequence), None)
            if self.cache:
                self.cache.free(slot)
        self.next.pop(sequence, None)
        if sequence in self.waiting:
            self.waiting.remove(sequence)
        self.first.discard(sequence)

    # ---- a round ----

    def propose(self, plan: list[Work]) -> list[Tree | None]:
        """What the cache had for each sequence that decodes; chains where the pass holds a prompt."""
        begin = perf_counter()
        self.supervisor.wake()
        if reason := self.supervisor.fault(bool(self.slot_of)):
            self._roll_back(reason)
        if self.lane:
            for work in plan:
                if work.sequence.decoding and work.sequence not in self.slot_of:
                    self._assign(work.sequence)
            self._lockstep()
            if self.waiting:
                self._fetch()
                self._lockstep()
        prefill = any(not work.sequence.decoding for work in plan)
        trees: list[Tree | None] = []
        for sequence, _ in plan:
            tree = self.next.get(sequence)
            if tree is not None and prefill and not tree.is_chain:
                tree = None  # its outcome is that of the root alone
            trees.append(tree)
        self.seconds = perf_counter() - begin
        return trees

    def _lockstep(self) -> None:
        """The draft lane's turn, where it has no thread of its own."""
        if self.supervisor.lockstep and self.lane and (reason := self.supervisor.turn()):
            self._roll_back(reason)

    def _assign(self, sequence) -> None:
        self.owners += 1
        slot, n = self.free.pop(), sequence.num_tokens
        self.slot_of[sequence], self.owner_of[sequence] = slot, self.owners
        self.first.add(sequence)
        self.requests[self.owners] = Request.of(sequence)
        tokens = torch.from_numpy(sequence.tokens[:n].copy())
        # beside each token the hidden state that drew it, the token before's
        features = self.features.of(sequence, self.layers)[: n - 1] if self.layers else None
        self.cache.assign(slot, self.owners, tokens, features)

    def _fetch(self) -> None:
        """Wait for the speculations that the draft makes after misses, as long as they are worth it."""
        begin = perf_counter()
        limit = self.pass_seconds.get(0.02)
        sequences, self.waiting = self.waiting, []
        slots = torch.tensor([self.slot_of[s] for s in sequences])
        self.cache.wait_ready(slots, int(1e6 * limit))
        emitted = torch.full((len(sequences), self.cache.nodes + 1), -1)
        emitted[:, 0] = torch.tensor([int(s.tokens[s.num_tokens - 1]) for s in sequences])
        path = torch.full((len(sequences), self.cache.nodes), -1, dtype=torch.int8)
        accepted = torch.full((len(sequences),), -1, dtype=torch.int32)
        matched = self.cache.match_swap(slots, path, accepted, emitted)
        self._shorten(sequences, [0] * len(sequences), matched)
        self.wants[slots.numpy()] = False
        self.cache.post(slots, path, accepted, emitted, matched)
        self._take(sequences, matched, "fallback")
        seconds = perf_counter() - begin
        self.answer.add(seconds)
        self.recoveries["local_retry"].seconds += [seconds / len(sequences)] * len(sequences)
        self.wait_seconds += seconds
        if self.trace:
            self.trace.span("verify", "local retry", begin, begin + seconds, sequences=len(sequences))

    def verify(self, plan, trees, logits, verification, sampling, placement) -> Verified:
        if self.rejection:
            self.verified = verify_by_rejection(plan, trees, *placement.get(logits), verification, sampling, self.ids)
        else:
            self.verified = verify_coupled(logits, verification, sampling, placement)
        return self.verified

    def observe(self, plan, trees, paths, offsets, features, seconds: float) -> None:
        """Match, swap, and tell the draft lane what came out."""
        known = [i for i, w in enumerate(plan) if w.sequence in self.slot_of and w.sequence.decoding]
        if all(w.sequence.decoding for w in plan):
            self.pass_seconds.add(seconds)
        if not known or self.lane is None:
            return
        place = np.cumsum([w.samples for w in plan]) - 1  # row of each sequence among those that sampled
        pick = torch.from_numpy(place[known])
        path, accepted, emitted = (t[pick] for t in self.verified[:3])
        sequences = [plan[i].sequence for i in known]
        slots = torch.tensor([self.slot_of[s] for s in sequences])
        matched = self.cache.match_swap(slots, path, accepted, emitted)
        counts = (accepted + 1).tolist()
        self._shorten(sequences, counts, matched)
        missed = [k for k, b in enumerate(matched.branch.tolist()) if b < 0]
        ask = len(missed) == len(sequences) and self._worth_asking()
        for k in missed:
            if not ask:
                self._fall_back(sequences[k], emitted[k, : counts[k]].tolist(), matched, k)
            self.wants[int(slots[k])] = ask
        feature_rows = row_offsets = None
        if self.layers:
            spans = [range(offsets[i], offsets[i + 1]) for i in known]
            feature_rows = features[torch.tensor([r for span in spans for r in span])]
            row_offsets = torch.tensor(np.cumsum([0, *map(len, spans)]), dtype=torch.int32)
        self.cache.post(slots, path, accepted, emitted, matched, feature_rows, row_offsets)
        for s, had in zip(sequences, counts, strict=True):
            if s in self.next and self.next[s].drafted:
                self.gain.add(had)
        self._take(sequences, matched)
        if self.trace:
            for k, s in enumerate(sequences):
                name = "miss" if k in missed else "hit"
                self.trace.instant("verify", name, accepted=counts[k] - 1, next=len(self.next.get(s, ())))
        counted = [k for k, s in enumerate(sequences) if s not in self.first]
        self.first.difference_update(sequences)
        self.rounds += 1
        self.misses += len(set(counted) & set(missed))
        self.hits += len(set(counted) - set(missed))
        self.verified_rows += sum(offsets[i + 1] - offsets[i] for i in known)
        if ask:
            self.waiting = [sequences[k] for k in missed]

    def _worth_asking(self) -> bool:
        """Whether, after a miss, waiting for the draft is expected to give more tokens per second than going on."""
        once = self.pass_seconds.get(0.02)
        return self.gain.get(2.0) / (once + self.answer.get(0.3 * once)) > 1 / once

    def _fall_back(self, sequence, new: list[int], matched: Matched, k: int) -> None:
        """A proposal that costs nothing, written where the branch would be."""
        if self.fallback is None:
            return
        tree = self.fallback.after(sequence, new, min(self.depth, self._room(sequence) - len(new)))
        matched.taken[k] = len(tree)
        if tree:
            matched.tokens[k, : len(tree)] = torch.tensor(tree.tokens, dtype=torch.int32)
            matched.parents[k, : len(tree)] = torch.tensor(tree.parents, dtype=torch.int8)

    @staticmethod
    def _room(sequence) -> int:
        """Tokens that may still be speculated: the bonus token takes a place too."""
        return len(sequence.tokens) - sequence.num_tokens - 1

    def _shorten(self, sequences, counts: list[int], matched: Matched) -> None:
        """No more levels than the sequence has room for, after so many tokens that are not appended yet."""
        for k, (sequence, count) in enumerate(zip(sequences, counts, strict=True)):
            taken, room = int(matched.taken[k]), max(self._room(sequence) - count, 0)
            if taken > room:
                depth = Tree(range(taken), matched.parents[k, :taken].tolist()).depth
                matched.taken[k] = sum(d <= room for d in depth)

    def _take(self, sequences, matched: Matched, origin: str = "hit") -> None:
        """What each sequence verifies next; origin: what branches from the cache are. Tokens out of range make no
        speculation, whoever wrote them."""
        for k, sequence in enumerate(sequences):
            begin = perf_counter()
            tokens = matched.tokens[k, : int(matched.taken[k])].tolist()
            self.next.pop(sequence, None)
            if not all(0 <= t < self.vocab for t in tokens):
                self.recoveries["rollback"].seconds.append(perf_counter() - begin)
            elif tokens:
                tree = self.next[sequence] = Tree(tokens, matched.parents[k, : len(tokens)].tolist())
                branch, slot = int(matched.branch[k]), self.slot_of[sequence]
                tree.origin, tree.drafted = origin if branch >= 0 else "fallback", branch >= 0
                tree.kind = Kind(int(matched.kinds[k])) if branch >= 0 else Kind.DETERMINISTIC
                if tree.kind == Kind.SAMPLED:
                    q = self.cache.q[int(self.cache.active[slot]), slot, branch, : len(tokens)].clone()
                    tree.q = dict(zip(tree.parents, q, strict=True))

    def stats(self) -> dict:
        """What Metrics.stats tells of the lanes."""
        tried, lane = self.hits + self.misses, self.lane
        return {
            "hit_rate": self.hits / tried if tried else None,
            "recoveries": {name: r.stats() for name, r in self.recoveries.items()},
            "draft_ms": 1e3 * lane.seconds / lane.rounds if lane and lane.rounds else 0.0,
            "wait_ms": 1e3 * self.wait_seconds / self.rounds if self.rounds else 0.0,
        }

    def release(self, sequence) -> None:
        self._forget(sequence)
        if not self.slot_of:
            self.supervisor.sleep()  # until there is something to prepare
        if self.fallback:
            self.fallback.release(sequence)
