"""Speculators that take turns."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from ..engine.features import Features, columns
from ..engine.scheduler import Plan
from ..engine.speculator import Proposal, Round, Speculator


class Switch:
    """Hands every round to one of its parts, by name. The engine keeps the target's features for all of them."""

    def __init__(self, parts: dict[str, Speculator], first: str):
        self.parts, self.mode = parts, first
        self.layers = tuple(sorted({layer for part in parts.values() for layer in part.layers}))
        self.trace = None
        for name, part in parts.items():
            if name != first:
                part.pause()

    @property
    def current(self) -> Speculator:
        return self.parts[self.mode]

    @property
    def runner(self):
        return self.current.runner

    def attach(self, features: Features) -> None:
        for part in self.parts.values():
            part.attach(features)

    def warm_up(self) -> Iterator[None]:
        return chain.from_iterable(part.warm_up() for part in self.parts.values())

    def propose(self, plan: Plan) -> Proposal:
        return self.current.propose(plan)

    def observe(self, round: Round) -> None:
        part, features = self.current, None
        if part.layers:
            features = columns(round.features, self.layers, part.layers)
        part.observe(replace(round, features=features))

    def switch(self, mode: str) -> None:
        """Let another part take over with the next proposal."""
        self.current.pause()
        self.mode = mode

    def release(self, sequence) -> None:
        for part in self.parts.values():
            part.release(sequence)

    def pause(self) -> None:
        self.current.pause()

    def close(self) -> None:
        for part in self.parts.values():
            part.close()

    def record(self, trace) -> None:
        self.trace = trace
        for part in self.parts.values():
            part.record(trace)

    def stats(self) -> dict:
        out = {}
        for part in self.parts.values():
            out |= part.stats()
        return out
