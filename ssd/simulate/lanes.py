"""A discrete-event simulation (simpy) of target and draft: plain decoding, speculation, and two lanes."""

from dataclasses import dataclass, field

import numpy as np
import simpy

from .outcomes import Outcomes

WAIT = ("any", "all", "never")
ABANDON = ("now", "pass", "never")


@dataclass(frozen=True)
class Plan:
    """How tokens are made. Raises ValueError that names the field."""

    mode: str  # ar, sd or ssd
    k: int = 0  # tokens of a speculation
    branches: int = 1  # outcomes of a sequence that ssd prepares for
    whole: bool = True  # whether a hit waits until its branch is complete, rather than take the tokens that are there
    # when the target waits for a chain of the draft, for the whole batch: if any sequence missed, if all did, or never;
    # a sequence that missed and does not wait verifies no speculation in the next round
    wait: str = "any"
    # when the draft drops a build whose round is over: now, after the pass that runs, or never
    abandon: str = "pass"

    def __post_init__(self):
        for name, known in (("mode", ("ar", "sd", "ssd")), ("wait", WAIT), ("abandon", ABANDON)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name}: got {getattr(self, name)!r}, wanted one of {', '.join(known)}")
        if self.mode != "ar" and self.k < 1:
            raise ValueError(f"k: got {self.k}, wanted at least 1")


@dataclass(eq=False)
class Sequence:
    """A sequence that decodes; times are in seconds."""

    left: float = float("inf")  # tokens to come
    depth: int = 0  # tokens of its next speculation
    arrived: float = 0.0  # when its request arrived
    first: float = 0.0  # when it got its first token
    finished: float = 0.0  # when it got its last token


@dataclass
class Tally:
    """Totals of a run."""

    seconds: float = 0.0  # length of the run
    tokens: int = 0  # tokens emitted
    rounds: int = 0
    hits: int = 0
    misses: int = 0
    verify: float = 0.0  # seconds that the target computed
    draft: float = 0.0  # seconds that the draft computed
    wait: float = 0.0  # seconds that the target waited for the draft
    passes: int = 0  # passes of the draft
    depths: int = 0  # drafted tokens that were verified

    @property
    def speed(self) -> float:
        """Tokens a second, all sequences together."""
        return self.tokens / self.seconds

    @property
    def hit_rate(self) -> float | None:
        tried = self.hits + self.misses
        return self.hits / tried if tried else None


@dataclass
class Task:
    """The outcome of a round, as the draft lane is told of it."""

    sequences: int
    ask: bool  # whether the target waits for a chain below the outcome
    answered: simpy.Event  # that chain is drafted
    built: simpy.Event  # all branches are complete
    over: simpy.Event  # the round is over, so the branches are no longer needed
    levels: int = 0  # tokens that every branch has


class Steady:
    """A source that gives the same batch for a number of rounds."""

    def __init__(self, batch: int, rounds: int):
        self.live = [Sequence() for _ in range(batch)]
        self.rounds = rounds

    def admit(self, replica):
        """A process that returns the sequences of the next round, none at the end."""
        self.rounds -= 1
        return self.live if self.rounds >= 0 else []
        yield  # never waits

    def emit(self, replica, sequence: Sequence, tokens: int) -> None:
        """Takes note of the tokens that a sequence got."""


@dataclass
class Replica:
    """One target and its draft."""

    env: simpy.Environment
    times: object  # has verify(sequences, rows) and draft(sequences, rows), in seconds
    plan: Plan
    outcomes: Outcomes | None
    source: object  # gives the sequences and takes their tokens, such as Steady
    rng: np.random.Generator
    tally: Tally = field(default_factory=Tally)
    task: Task | None = None  # the last one that the draft was told of

    def run(self):
        self.inbox = simpy.Store(self.env)
        if self.plan.mode == "ssd":
            self.env.process(self.draft_lane())
        while live := (yield from self.source.admit(self)):
            yield from getattr(self, self.plan.mode)(live)
            self.tally.rounds += 1
            self.tally.seconds = self.env.now

    # ---- passes ----

    def verify(self, live: list[Sequence]):
        rows = sum(s.depth + 1 for s in live)
        seconds = self.times.verify(len(live), rows)
        self.tally.verify += seconds
        self.tally.depths += rows - len(live)
        yield self.env.timeout(seconds)

    def draft(self, sequences: int, rows: int, stop: simpy.Event | None = None):
        begin = self.env.now
        done = self.env.timeout(self.times.draft(sequences, rows))
        yield done if stop is None else done | stop
        self.tally.draft += self.env.now - begin
        self.tally.passes += 1

    def emit(self, sequence: Sequence, tokens: int) -> None:
        self.tally.tokens += tokens
        self.source.emit(self, sequence, tokens)

    def wait(self, event: simpy.Event):
        begin = self.env.now
        yield event
        self.tally.wait += self.env.now - begin

    # ---- rounds ----

    def ar(self, live):
        yield from self.verify(live)
        for s in live:
            self.emit(s, 1)

    def sd(self, live):
        begin = self.env.now
        for _ in range(self.plan.k):
            yield from self.draft(len(live), len(live))
        self.tally.wait += self.env.now - begin
        for s in live:
            s.depth = self.plan.k
        yield from self.verify(live)
        for s in live:
            self.emit(s, self.outcomes.draw(self.rng, s.depth)[0] + 1)

    def ssd(self, live):
        known = self.task is not None
        yield from self.verify(live)
        drawn = [self.outcomes.draw(self.rng, s.depth) for s in live]
        hits = [s for s, (_, hit) in zip(live, drawn, strict=True) if hit and known]
        if not self.plan.whole and known and not self.task.levels:
            hits = []  # nothing is published yet
        ask = {"any": len(hits) < len(live), "all": not hits, "never": not known}[self.plan.wait]
        if hits and not ask and self.plan.whole:
            yield from self.wait(self.task.built)
        levels = self.task.levels if known else 0
        if known:
            self.tally.hits += len(hits)
            self.tally.misses += len(live) - len(hits)
            self.task.over.succeed()
        for s, (n, _) in zip(live, drawn, strict=True):
            self.emit(s, n + 1)
        event = self.env.event
        self.task = Task(len(live), ask, event(), event(), event())
        self.inbox.put(self.task)
        if ask:
            yield from self.wait(self.task.answered)
        for s in live:
            s.depth = self.plan.k if ask else levels if s in hits else 0

    def draft_lane(self):
        plan = self.plan
        while True:
            task = yield self.inbox.get()
            while self.inbox.items:
                task = yield self.inbox.get()
            if task.ask:
                for _ in range(plan.k):
                    yield from self.draft(task.sequences, task.sequences)
                task.answered.succeed()
            for level in range(plan.k + 1):  # the new tokens first, then the branches
                stop = task.over if plan.abandon == "now" else None
                yield from self.draft(task.sequences, task.sequences * plan.branches, stop)
                if task.over.triggered and plan.abandon != "never":
                    break
                task.levels = level
            else:
                task.built.succeed()


def simulate(times, plan: Plan, outcomes: Outcomes | None = None, batch: int = 1, rounds: int = 2000, seed: int = 0):
    """The Tally of a batch that decodes for `rounds` rounds. The same seed gives the same run."""
    env = simpy.Environment()
    replica = Replica(env, times, plan, outcomes, Steady(batch, rounds), np.random.default_rng(seed))
    env.run(env.process(replica.run()))
    return replica.tally
