"""The draft lane: a thread that prepares speculations for the likely outcomes of the verification in progress."""

import threading
from time import monotonic, perf_counter
from typing import NamedTuple

import numpy as np
import torch

from ssd.kernels import Kind

from ..drafting.draft_runner import DraftRows, DraftRunner
from ..engine.tree import Tree
from .branch_budget import FIRST, BranchBudget
from .fan_out import RANKS, FanOut
from .forest import Forest
from .speculation_cache import Outcome, SpeculationCache, key

CHUNK = 256  # rows of a prompt in one pass
WAIT_US = 50_000


class Request(NamedTuple):
    """What a sequence asks for, by its owner number."""

    params: object
    seed: int
    capacity: int  # tokens
    prompt_len: int
    logits_processors: list  # what changes its logits, as copies

    @classmethod
    def of(cls, s) -> "Request":
        return cls(
            s.params, s.seed, len(s.tokens), s.prompt_len, [processor.copy() for processor in s.logits_processors]
        )


class DraftLane(threading.Thread):
    """Answers the outcomes that a speculation cache tells of, until stopped or until it fails.

    clock: for how many outcomes, and how long branches; width: branches below a bonus token; leaves: first levels with
    one token more for each, which is not extended.
    requests: owner to Request, written before the owner is assigned a slot. wants: bool [slots], whether the newest
    outcome of a slot waits for one speculation of its own. error: what ended it. beat: time of the last sign of life.
    """

    def __init__(
        self, runner: DraftRunner, sampler, cache: SpeculationCache, requests: dict[int, Request], wants: np.ndarray,
        fan_out: FanOut, branch_budget: BranchBudget, *, width: int, leaves: int = 0,
    ):  # fmt: skip
        super().__init__(name="draft lane", daemon=True)
        self.runner, self.sampler, self.cache = runner, sampler, cache
        self.requests, self.wants, self.fan_out = requests, wants, fan_out
        self.branch_budget, self.width, self.leaves = branch_budget, width, leaves
        self.forests: dict[int, Forest] = {}
        self.slots = torch.arange(cache.slots)
        self.seen = torch.zeros(cache.slots, dtype=torch.int64)
        self.stopping, self.error, self.beat = False, None, monotonic()
        self.awake, self.asleep = threading.Event(), False
        self.awake.set()
        self.seconds, self.rounds = 0.0, 0  # at work
        self.trace = None

    # ---- life ----

    def run(self) -> None:
        try:
            torch.empty(1 << 20).sum()  # with OMP_PROC_BIND a thread is moved at its first parallel loop: before this
            self.runner.placement.enter()
            with torch.inference_mode():
                while not self.stopping:
                    self.asleep = not self.awake.is_set()
                    if self.awake.wait(0.2):
                        self.asleep = False
                        self.step()
        except Exception as e:  # whatever it is, the verify lane goes on without this one
            self.error = e

    def stop(self) -> None:
        self.stopping = True
        self.awake.set()

    def step(self, wait_us: int = WAIT_US) -> None:
        """Wait for outcomes and prepare what may follow them."""
        self.beat = monotonic()
        outcomes = self.cache.wait_outcomes(self.slots, self.seen, wait_us)
        self.beat = monotonic()
        begin = perf_counter()
        told = [(slot, o) for slot, o in enumerate(outcomes) if o]
        forests = [f for slot, o in told if (f := self.take(slot, o))]
        if forests:
            with self.runner.placement.stream():
                self.grow(forests)
            end = perf_counter()
            self.rounds += 1
            self.seconds += end - begin
            if self.trace:
                self.trace.span("draft", "round", begin, end, epochs=[f.epoch for f in forests])

    def newer(self, f: Forest) -> bool:
        """Whether the round that f answers is over."""
        return self.stopping or int(self.cache.latest[f.slot]) != f.epoch

    # ---- outcomes ----

    def take(self, slot: int, o: Outcome) -> Forest | None:
        """The forest of a slot brought up to an outcome; None where nothing is to be prepared."""
        self.seen[slot] = o.epoch
        f, flight = self.forests.get(slot), Tree(o.tokens, o.parents)
        request = self.requests.get(o.owner)
        if o.owner < 0 or request is None:
            self.forests.pop(slot, None)
            return None
        if f is None or f.born != o.born:
            width = self.runner.draft.feature_width if self.runner.own else 0
            features = torch.empty(request.capacity, width) if width else None
            tokens = np.empty(request.capacity, np.int64)
            f = self.forests[slot] = Forest(self.runner, slot, request, tokens, features)
            f.born = o.born
        start, lagged = f.num_tokens, o.epoch != f.epoch + 1
        confirmed = self.cache.catch_up(slot, o, start)
        if confirmed is None or not self._take_features(f, slot, o, start):
            self.forests.pop(slot)
            return None
        if lagged:
            f.restart(confirmed.tolist(), flight)
        else:
            if len(confirmed):
                self._learn(f, o)
            f.advance(confirmed.tolist(), o.node, o.branch, flight)
        f.epoch, f.hit = o.epoch, o.hit
        return f

    def _learn(self, f: Forest, o: Outcome) -> None:
        depth = f.tree.depth[o.node] if o.node >= 0 else 0
        leaf = all(parent != o.node for parent in f.tree.parents[: f.flight])
        if o.node in f.best:
            self.fan_out.update(f.hit, depth, leaf, f.rank(o.node, o.token))

    def _take_features(self, f: Forest, slot: int, o: Outcome, start: int) -> bool:
        """Features of the tokens before those from start on; the cache keeps each beside the token that it drew."""
        first = max(start, 1)
        if f.features is None or o.length <= first:
            return True
        return self.cache.features_of(slot, o, first, f.features[first - 1 : o.length - 1])

    # ---- growth ----

    def grow(self, forests: list[Forest]) -> None:
        forests = [f for f in forests if self.fits(f)]
        for f in forests:
            self.prefill(f)
        forests = self.catch_up(forests)
        alone = [f for f in forests if self.wants[f.slot] and not f.flight and not f.hit]
        others = [f for f in forests if f not in alone]
        if alone:
            self.answer(alone)
        if others:
            self.fork(others)

    def fits(self, f: Forest) -> bool:
        """Whether the draft's context has room for what may be prepared now: beyond it nothing is."""
        return f.num_tokens + max(f.tree.depth[: f.flight], default=0) + self.branch_budget.depth <= self.runner.max_len

    def prefill(self, f: Forest) -> None:
        """All but the last rows of a long text that is new to the draft."""
        shift = self.runner.draft.shift
        while f.fresh > CHUNK:
            begin = max(f.cached, shift)
            span = range(begin - shift, begin - shift + CHUNK)
            tokens = f.tokens[begin : begin + CHUNK].tolist()
            hidden = self.runner.hidden(f.features, begin, begin + CHUNK)
            self.runner.forward([DraftRows(f.slot, begin - shift, tokens, span, span, None, [])], hidden)
            f.cached = begin + CHUNK
            self.beat = monotonic()

    def catch_up(self, forests: list[Forest]) -> list[Forest]:
        """Compute the root and every node in flight. Returns the forests whose round still goes on."""
        first = True
        while True:
            work = [(f, f.due(), f.fresh if first else 0) for f in forests]
            work = [(f, nodes, fresh) for f, nodes, fresh in work if nodes or fresh]
            if not work:
                return [f for f in forests if not self.newer(f)]
            self.compute(work)
            first = False

    def compute(self, work: list[tuple[Forest, list[int], int]]) -> None:
        """One pass over nodes, and over so many of the newest confirmed tokens, of each forest."""
        begin = perf_counter()
        rows, hidden = zip(*(f.rows(nodes, fresh) for f, nodes, fresh in work), strict=True)
        logits, features = self.runner.forward(list(rows), torch.cat(hidden) if self.runner.own else None)
        ends = [(f, node) for f, nodes, fresh in work for node in ([-1] if fresh else []) + nodes]
        positions = [f.position(node) for f, node in ends]
        logits = self.runner.shape(logits, [(f, f.tree, node) for f, node in ends])
        width = RANKS + self.width + (self.leaves > 0)
        best, _, bonus, q = self.runner.candidates(self.sampler, logits, [f for f, _ in ends], positions, width)
        found = list(zip(best, bonus, [None] * len(best) if q is None else q, strict=True))
        at = row = 0
        for (f, nodes, fresh), r in zip(work, rows, strict=True):
            n = len(nodes) + (fresh > 0)
            own = features[row : row + len(r.tokens)] if self.runner.own else None
            f.computed(nodes, fresh, found[at : at + n], own)
            at, row = at + n, row + len(r.tokens)
        self.beat = monotonic()
        if self.trace:
            self.trace.span("draft", "pass", begin, perf_counter(), rows=sum(len(r.tokens) for r in rows))

    def fork(self, forests: list[Forest]) -> None:
        """Branches for the likely outcomes of each forest's round, published depth by depth."""
        budget = max(1, self.branch_budget.outcomes // len(forests))
        live = []
        for f in forests:
            depths, parents = f.tree.depth[: f.flight], f.tree.parents[: f.flight]
            keys = f.choose(self.fan_out.allocate(f.hit, depths, parents, budget))
            if keys:
                live.append((f, keys))
        frontier = {f: list(f.branches) for f, _ in live}
        ends, count = [-1], 0  # in a branch: nodes that are extended, nodes that are published
        for level in range(1, (last := self.branch_budget.depth) + 1):
            if not live:
                return
            self.compute([(f, frontier[f], 0) for f, _ in live])
            wide = self.width if level == 1 else 1
            children = wide + (level <= self.leaves)
            levels = []
            for f, keys in live:
                drawn = [node for node in frontier[f] for _ in range(children)]
                tokens = [t for node in frontier[f] for t in f.children(node, children)]
                added = [f.add(t, node) for t, node in zip(tokens, drawn, strict=True)]
                frontier[f] = [node for i, node in enumerate(added) if i % children < wide]
                levels.append((f, keys, tokens, drawn))
            parents = [node for node in ends for _ in range(children)]
            ends = [count + i for i in range(len(parents)) if i % children < wide]
            told = [each for each in levels if not self.newer(each[0])]
            if len(told) < len(levels) or level == last:
                self.branch_budget.tick(len(told) == len(levels), self.fan_out.tables[True]["accept"])
            self._publish(told, level, parents, count)
            live = [(f, keys) for f, keys, *_ in told]
            count += len(parents)

    def _publish(self, told: list[tuple], level: int, parents: list[int], count: int) -> None:
        """A level, behind `count` nodes, of every branch of forests: (forest, keys, tokens branch by branch,
        nodes that these were drawn below)."""
        span = len(parents)
        if self.trace and told:
            self.trace.instant("draft", "publish", depth=level, branches=[len(k) for _, k, _, _ in told])
        for f, keys, tokens, drawn in told:
            values = torch.tensor(tokens).view(len(keys), span)
            self.write(f, [key(*k) for k in keys], values, parents, count, drawn)

    def write(self, f: Forest, keys: list[int], tokens, parents: list[int], count: int, drawn: list[int]) -> None:
        """Nodes of branches, tokens int64 [branches, n], into the speculation cache behind `count` others. drawn: for
        each token the node of the forest that it was drawn below."""
        cache, n = self.cache, len(parents)
        values = torch.zeros(1, cache.branches, n, dtype=torch.int64)
        values[0, : len(keys)] = tokens
        above = torch.tensor(parents, dtype=torch.int8).expand(1, cache.branches, n).contiguous()
        slots, epochs = torch.tensor([f.slot]), torch.tensor([f.epoch + 1])
        kind = self.sampler.kind(f.params)
        if kind == Kind.SAMPLED:
            standby = 1 - int(cache.active[f.slot])
            cache.q[standby, f.slot, : len(keys), count : count + n] = torch.stack([f.q[p] for p in drawn]).view(
                len(keys), n, -1
            )
        if count:
            cache.extend(slots, epochs, count, values, above)
            return
        names = torch.full((1, cache.branches), -1, dtype=torch.int64)
        names[0, : len(keys)] = torch.tensor(keys)
        cache.publish(slots, epochs, names, values, above, kind=int(kind))

    def answer(self, forests: list[Forest]) -> None:
        """One chain below the root of each forest, published whole: what the verify lane waits for after a miss."""
        ends, depth = {f: -1 for f in forests}, max(1, min(self.branch_budget.depth, FIRST))
        for level in range(depth):
            if level:
                self.compute([(f, [node], 0) for f, node in ends.items()])
            for f, node in ends.items():
                ends[f] = f.add(f.children(node, 1)[0], node)
        for f in ends:
            root = key(-1, int(f.tokens[f.num_tokens - 1]))
            chain = list(range(-1, depth - 1))
            self.write(f, [root], torch.tensor([f.tree.tokens[:depth]]), chain, 0, chain)
