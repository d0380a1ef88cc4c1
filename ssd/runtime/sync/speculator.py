"""Synchronous speculation: whether to speculate in a round, and what was learnt from it."""

from collections.abc import Iterator
from time import perf_counter

from ..engine.features import Features
from ..engine.scheduler import Plan
from ..engine.speculator import Proposal, Round
from ..engine.tree import Tree
from .policy import Policy, Record


class SyncSpeculator:
    """A speculator that drafts while the target waits.

    proposer: propose(sequences, limits, thresholds, policy, width) -> trees, accept(sequences, trees, paths),
    release(sequence), pause(), warm_up(width), layers, runner, steps, and features, which the engine's become.
    """

    def __init__(self, proposer, policy: Policy):
        self.proposer, self.policy = proposer, policy
        self.records: dict[object, Record] = {}
        self.overall = Record(rate=0.01)

    @property
    def runner(self):
        return self.proposer.runner

    @property
    def layers(self) -> tuple[int, ...]:
        return self.proposer.layers

    def attach(self, features: Features) -> None:
        self.proposer.features = features

    def warm_up(self) -> Iterator[None]:
        return self.proposer.warm_up(self.policy.width)

    def propose(self, plan: Plan) -> Proposal:
        """A tree for each sequence that decodes and is worth it."""
        begin, before, policy = perf_counter(), self.proposer.steps, self.policy
        trees: list[Tree | None] = [None] * len(plan)
        plain = policy.wants_plain(self.overall.speed()) and plan.decoding
        chosen, limits = [], []
        for i, (sequence, _) in enumerate(plan):
            room = len(sequence.tokens) - sequence.num_tokens - 1  # the bonus token needs room too
            record = self.records.get(sequence) or self.records.setdefault(sequence, Record(self.overall))
            if sequence.decoding and room > 0 and not plain and (not policy.adaptive or record.pays()):
                chosen.append(i)
                limits.append(min(room, policy.depth))
        seconds = 0.0
        if chosen:
            sequences = [plan[i].sequence for i in chosen]
            speeds = [max(1.0, self.records[s].speed()) for s in sequences]
            thresholds = [policy.thresholds(speed, len(chosen)) for speed in speeds]
            width = policy.width if plan.decoding else 1
            found = self.proposer.propose(sequences, limits, thresholds, policy, width)
            for i, tree in zip(chosen, found, strict=True):
                trees[i] = tree
            seconds = perf_counter() - begin
        policy.drafted(self.proposer.steps - before, seconds)
        return Proposal(trees, seconds)

    def observe(self, round: Round) -> None:
        done = [part for part in round if part.tree is not None]
        if done:
            self.proposer.accept(*zip(*((part.sequence, part.tree, part.path) for part in done), strict=True))
        policy = self.policy
        if round.plan.decoding:
            policy.verified(len(round), sum(len(part.tree) for part in done), round.seconds)
            cost = (round.seconds + round.draft_seconds) / policy.plain.get(round.seconds)
            for part in done:
                self.records[part.sequence].add(len(part.path) + 1, cost)
                self.overall.add(len(part.path) + 1, cost)
        for part in done:
            accepted = {-1, *part.path}
            for node, parent in enumerate(part.tree.parents):
                if parent in accepted:
                    policy.calibration.update(part.tree.rank[node], node in accepted)

    def release(self, sequence) -> None:
        self.records.pop(sequence, None)
        self.proposer.release(sequence)

    def pause(self) -> None:
        """Give the draft's pages back; the next proposal catches up."""
        self.proposer.pause()

    def close(self) -> None:
        """Nothing to do: nothing runs beside the engine."""

    def record(self, trace) -> None:
        """Nothing to do: the engine's own spans tell all."""

    def stats(self) -> dict:
        return {}
