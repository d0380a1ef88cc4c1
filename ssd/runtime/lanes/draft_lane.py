"""The draft lane: a thread that prepares speculations for the likely outcomes of the verification in progress."""

import threading
from collections.abc import Iterator
from itertools import islice
from time import monotonic, perf_counter

import torch

from ssd.kernels import Kind

from ..drafting.draft_runner import DraftRunner, output_rows
from ..drafting.draft_state import prefill
from ..drafting.warm_up import warm_up_draft
from ..engine.tree import Tree
from .branch_budget import FIRST, BranchBudget
from .fan_out import RANKS, FanOut
from .forest import Computed, Forest
from .lane_slot import LaneSlot
from .speculation_cache import Outcome, SpeculationCache, key

CHUNK = 256  # rows of a prompt in one pass
WAIT_US = 50_000


class DraftLane:
    """Answers the outcomes that a speculation cache tells of, until stopped or until it fails.

    owners: what the verify lane keeps of each owner, in place before the owner is assigned a slot. branch_budget: how
    many outcomes to prepare for, and how long branches are; width: branches below a bonus token; leaves: levels of a
    branch, the first ones, with one more token each that is not extended. thread: its own, None where it takes
    turns instead; error: what ended the lane; beat: time of its last sign of life.
    """

    def __init__(
        self, runner: DraftRunner, sampler, cache: SpeculationCache, owners: dict[int, LaneSlot], fan_out: FanOut,
        branch_budget: BranchBudget, *, width: int, leaves: int = 0,
    ):  # fmt: skip
        self.runner, self.sampler, self.cache, self.owners = runner, sampler, cache, owners
        self.fan_out, self.branch_budget = fan_out, branch_budget
        self.width, self.leaves = width, leaves
        self.forests: dict[int, Forest] = {}
        self.slots = torch.arange(cache.slots)
        self.seen = torch.zeros(cache.slots, dtype=torch.int64)
        self.thread: threading.Thread | None = None
        self.stopping, self.error, self.beat = False, None, monotonic()
        self.awake, self.asleep = threading.Event(), False
        self.awake.set()
        self.seconds, self.rounds = 0.0, 0  # at work
        self.trace = None

    def warm_up(self) -> Iterator[None]:
        """Run the passes that compile the draft's kernels, in the calling thread."""
        seen = max(self.runner.nodes, CHUNK + self.cache.nodes)  # by nodes in flight, beside new tokens
        return warm_up_draft(self.runner, self.sampler, [self.candidates], CHUNK, seen)

    @property
    def candidates(self) -> int:
        """How many candidates each row is asked for."""
        return RANKS + self.width + (self.leaves > 0)

    # ---- life ----

    def start(self) -> None:
        # The thread lets go of its target before it counts as ended. So a lane that nobody else holds goes while others
        # can still wait for the thread: to free a tensor it gives up the interpreter's lock and asks for it again.
        self.thread = threading.Thread(target=self.run, name="draft lane", daemon=True)
        self.thread.start()

    def run(self) -> None:
        try:
            self.runner.placement.enter()
            with torch.inference_mode():
                while not self.stopping:
                    self.asleep = not self.awake.is_set()
                    if self.asleep:
                        self.runner.pages.drop_all()
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
        record = self.owners.get(o.owner)
        if record is None:
            self.drop(slot)
            return None
        if f is None or f.born != o.born:
            f = self.forests[slot] = Forest(self.runner, record, o.born)
        start, lagged = f.num_tokens, o.epoch != f.epoch + 1
        confirmed = self.cache.catch_up(slot, o, start)
        if confirmed is None or not self._take_features(f, slot, o, start):
            self.drop(slot)
            return None
        if lagged:
            f.restart(confirmed.tolist(), flight)
        elif not len(confirmed):
            f.verify_answer(flight)
        else:
            self._learn(f, o)
            f.advance(confirmed.tolist(), o.node, o.branch, flight)
        f.epoch, f.hit = o.epoch, o.hit
        return f

    def drop(self, slot: int) -> None:
        self.forests.pop(slot, None)
        self.runner.pages.drop(slot)

    def _learn(self, f: Forest, o: Outcome) -> None:
        depth = f.tree.depth[o.node] if o.node >= 0 else 0
        leaf = all(parent != o.node for parent in f.tree.parents[: f.flight])
        if o.node in f.known:
            self.fan_out.update(f.hit, depth, leaf, f.rank(o.node, o.token))

    def _take_features(self, f: Forest, slot: int, o: Outcome, start: int) -> bool:
        """Features of the tokens before those from start on; the cache keeps each beside the token that it drew."""
        first = max(start, 1)
        if f.features is None or o.length <= first:
            return True
        return self.cache.features_of(slot, o, first, f.features[first - 1 : o.length - 1])

    # ---- growth ----

    def grow(self, forests: list[Forest]) -> None:
        """Prepare what may follow the newest outcome of each forest."""
        forests = [f for f in forests if self.fits(f)]
        for f in forests:
            for _ in prefill([f], CHUNK):
                self.beat = monotonic()
        forests = self.catch_up(forests)
        asked = [f for f in forests if f.record.waits and not f.flight and not f.hit]
        others = [f for f in forests if f not in asked]
        if asked:
            self.answer(asked)
        if others:
            self.fork(others)

    def fits(self, f: Forest) -> bool:
        """Whether the draft's context and its memory have room for what may be prepared now: beyond them nothing is."""
        deepest = f.num_tokens + max(f.tree.depth[: f.flight], default=0) + self.branch_budget.depth
        return deepest <= self.runner.max_len and f.reserve(self.runner.nodes)

    def catch_up(self, forests: list[Forest]) -> list[Forest]:
        """Compute the root and every node in flight. Returns the forests whose round still goes on."""
        work = [(f, f.due(), f.fresh) for f in forests]
        while work := [(f, nodes, fresh) for f, nodes, fresh in work if nodes or fresh]:
            self.compute(work)
            work = [(f, f.due(), 0) for f in forests]
        return [f for f in forests if not self.newer(f)]

    def compute(self, work: list[tuple[Forest, list[int], int]]) -> None:
        """One pass over nodes, and over so many of the newest confirmed tokens, of each forest."""
        begin, runner = perf_counter(), self.runner
        rows, hidden = zip(*(f.pass_rows(nodes, fresh) for f, nodes, fresh in work), strict=True)
        logits, features = runner.forward(list(rows), torch.cat(hidden) if runner.own else None)
        ends = [(f, node) for f, nodes, fresh in work for node in [-1] * (fresh > 0) + nodes]
        logits = runner.process(logits, [(f, f.tree, node) for f, node in ends])
        positions = [f.position(node) for f, node in ends]
        best, _, bonus, q = runner.candidates(self.sampler, logits, [f for f, _ in ends], positions, self.candidates)
        none = [None] * len(ends)
        own = runner.placement.take(features, output_rows(rows)) if runner.own else none
        found = iter([Computed(*each) for each in zip(best, bonus, none if q is None else q, own, strict=True)])
        for f, nodes, fresh in work:
            f.learn(nodes, fresh, list(islice(found, len(nodes) + (fresh > 0))))
        self.beat = monotonic()
        if self.trace:
            self.trace.span("draft", "pass", begin, perf_counter(), rows=sum(len(r.tokens) for r in rows))

    def fork(self, forests: list[Forest]) -> None:
        """Prepare branches for the likely outcomes of each forest's round, published level by level."""
        live = self.choose(forests)  # forests, and the keys of their branches, whose round goes on
        frontier = {f: list(f.branches) for f, _ in live}
        ends, count = [-1], 0  # in a branch: nodes that are extended, nodes that are published
        last = self.branch_budget.depth
        for level in range(1, last + 1):
            if not live:
                return
            self.compute([(f, frontier[f], 0) for f, _ in live])
            wide = self.width if level == 1 else 1
            children = wide + (level <= self.leaves)
            grown = []
            for f, keys in live:
                drawn = [node for node in frontier[f] for _ in range(children)]
                tokens = [t for node in frontier[f] for t in f.children(node, children)]
                added = [f.tree.add(t, node) for t, node in zip(tokens, drawn, strict=True)]
                frontier[f] = [node for i, node in enumerate(added) if i % children < wide]
                grown.append((f, keys, tokens, drawn))
            parents = [node for node in ends for _ in range(children)]
            ends = [count + i for i in range(len(parents)) if i % children < wide]
            current = [each for each in grown if not self.newer(each[0])]
            if len(current) < len(grown) or level == last:
                self.branch_budget.tick(len(current) == len(grown), self.fan_out.tables[True]["accept"])
            self.publish(current, level, parents, count)
            live = [(f, keys) for f, keys, *_ in current]
            count += len(parents)

    def choose(self, forests: list[Forest]) -> list[tuple[Forest, list[tuple[int, int]]]]:
        """Share out the budget of branches. Returns the forests that got some, with their keys (node, token)."""
        budget = max(1, self.branch_budget.outcomes // len(forests))
        live = []
        for f in forests:
            depths, parents = f.tree.depth[: f.flight], f.tree.parents[: f.flight]
            keys = f.choose(self.fan_out.allocate(f.hit, depths, parents, budget))
            if keys:
                live.append((f, keys))
        return live

    def answer(self, forests: list[Forest]) -> None:
        """Draft one chain below the root of each forest, published whole: the verify lane waits for it after a miss."""
        ends, depth = {f: -1 for f in forests}, max(1, min(self.branch_budget.depth, FIRST))
        for level in range(depth):
            if level:
                self.compute([(f, [node], 0) for f, node in ends.items()])
            for f, node in ends.items():
                ends[f] = f.tree.add(f.children(node, 1)[0], node)
        for f in ends:
            root = key(-1, int(f.tokens[f.num_tokens - 1]))
            chain = list(range(-1, depth - 1))
            self.write(f, [root], torch.tensor([f.tree.tokens[:depth]]), chain, 0, chain)

    # ---- publication ----

    def publish(self, grown: list[tuple], level: int, parents: list[int], count: int) -> None:
        """Publish one level of every branch, behind `count` nodes: for each forest its keys, its tokens branch by
        branch, and the nodes that these were drawn below."""
        if self.trace and grown:
            self.trace.instant("draft", "publish", depth=level, branches=[len(keys) for _, keys, _, _ in grown])
        for f, keys, tokens, drawn in grown:
            values = torch.tensor(tokens).view(len(keys), len(parents))
            self.write(f, [key(*k) for k in keys], values, parents, count, drawn)

    def write(self, f: Forest, keys: list[int], tokens, parents: list[int], count: int, drawn: list[int]) -> None:
        """Write nodes of branches, tokens int64 [branches, n], into the speculation cache behind `count` others.

        drawn: for each token the node of the forest that it was drawn below.
        """
        cache, n, used = self.cache, len(parents), len(keys)
        values = torch.zeros(1, cache.branches, n, dtype=torch.int64)
        values[0, :used] = tokens
        above = torch.tensor(parents, dtype=torch.int8).expand(1, cache.branches, n).contiguous()
        slots, epochs = torch.tensor([f.slot]), torch.tensor([f.epoch + 1])
        kind = self.sampler.kind(f.params)
        if kind == Kind.SAMPLED:
            standby = 1 - int(cache.active[f.slot])
            q = torch.stack([f.known[node].q for node in drawn])
            cache.q[standby, f.slot, :used, count : count + n] = q.view(used, n, -1)
        if count:
            cache.extend(slots, epochs, count, values, above)
            return
        names = torch.full((1, cache.branches), -1, dtype=torch.int64)
        names[0, :used] = torch.tensor(keys)
        cache.publish(slots, epochs, names, values, above, kind=int(kind))
