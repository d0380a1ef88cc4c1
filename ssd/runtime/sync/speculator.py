"""Synchronous speculation: whether to speculate in a round, and what was learnt from it."""

from time import perf_counter

from ssd.kernels import Verified

from ..engine.features import Features
from ..engine.scheduler import Work
from ..engine.tree import Tree
from ..engine.verify import verify_by_rejection, verify_coupled
from .policy import Policy, Record


class SyncSpeculator:
    """Between an engine and a proposer.

    proposer: propose(sequences, limits, thresholds, policy, width) -> trees, accept(sequences, trees, paths),
    release(sequence), ids, layers, steps, and features, which the engine's become. rejection: verify by rejection
    sampling in place of the coupled sampler.
    """

    def __init__(self, proposer, policy: Policy, rejection: bool = False):
        self.proposer, self.policy, self.rejection = proposer, policy, rejection
        self.records: dict[object, Record] = {}
        self.overall = Record(rate=0.01)
        self.seconds = 0.0  # of the proposals of the round in progress

    @property
    def runner(self):
        """The DraftRunner, None where no model drafts."""
        return self.proposer.runner

    @property
    def layers(self) -> tuple[int, ...]:
        return self.proposer.layers

    def attach(self, features: Features) -> None:
        """Where the engine keeps the target's features."""
        self.proposer.features = features

    def propose(self, plan: list[Work]) -> list[Tree | None]:
        """A tree for each sequence of the plan that decodes and is worth it; chains where the pass holds a prompt."""
        begin, before = perf_counter(), self.proposer.steps
        trees: list[Tree | None] = [None] * len(plan)
        prefill = any(not work.sequence.decoding for work in plan)
        plain = self.policy.wants_plain(self.overall.speed()) and not prefill
        chosen = []
        for i, (sequence, _) in enumerate(plan):
            room = len(sequence.tokens) - sequence.num_tokens - 1  # the bonus token takes a place too
            record = self.records.get(sequence) or self.records.setdefault(sequence, Record(self.overall))
            if sequence.decoding and room > 0 and not plain and (not self.policy.adaptive or record.pays()):
                chosen.append((i, sequence, min(room, self.policy.depth)))
        if chosen:
            sequences, limits = [s for _, s, _ in chosen], [limit for _, _, limit in chosen]
            speeds = [max(1.0, self.records[s].speed()) for s in sequences]
            thresholds = [self.policy.thresholds(speed, len(sequences)) for speed in speeds]
            width = 1 if prefill else self.policy.width
            for (i, *_), tree in zip(
                chosen, self.proposer.propose(sequences, limits, thresholds, self.policy, width), strict=True
            ):
                trees[i] = tree
        self.seconds = perf_counter() - begin if chosen else 0.0
        self.policy.drafted(self.proposer.steps - before, self.seconds)
        return trees

    def verify(self, plan, trees, logits, verification, sampling, placement) -> Verified:
        """Verified for the sequences of the plan that sample, in host memory."""
        if not self.rejection:
            return verify_coupled(logits, verification, sampling, placement)
        return verify_by_rejection(plan, trees, *placement.get(logits), verification, sampling, self.proposer.ids)

    def observe(self, plan, trees, paths, offsets, features, seconds: float) -> None:
        """After a pass of so many seconds, before the sequences move on. paths[i]: accepted nodes, None without a
        verification."""
        done = [(w.sequence, tree, path) for w, tree, path in zip(plan, trees, paths, strict=True) if tree is not None]
        if done:
            self.proposer.accept(*zip(*done, strict=True))
        policy = self.policy
        if all(work.sequence.decoding for work in plan):
            policy.verified(len(plan), sum(len(tree) for _, tree, _ in done), seconds)
            cost = (seconds + self.seconds) / policy.plain.get(seconds)
            for sequence, _, path in done:
                self.records[sequence].add(len(path) + 1, cost)
                self.overall.add(len(path) + 1, cost)
        for _, tree, path in done:
            kept = set(path)
            for node, parent in enumerate(tree.parents):
                if parent < 0 or parent in kept:
                    policy.calibration.update(tree.rank[node], node in kept)

    def record(self, trace) -> None:
        """The engine's own spans tell all."""

    def pause(self) -> None:
        """Another takes over; the next proposal catches up."""

    def close(self) -> None:
        """Nothing runs beside the engine."""

    def stats(self) -> dict:
        """What Metrics.stats tells beside counts and times."""
        return {}

    def release(self, sequence) -> None:
        self.records.pop(sequence, None)
        self.proposer.release(sequence)
