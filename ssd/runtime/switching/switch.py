"""Speculators that take turns, and the choice of the draft among two (recovery by model switch)."""

from ..engine.features import Features, columns


class Switch:
    """Hands every round to one of its parts, by name. The target's features are asked for once, for all of them."""

    def __init__(self, parts: dict[str, object], first: str):
        self.parts, self.mode = parts, first
        self.rejection = self.current.rejection
        self.layers = tuple(sorted({layer for part in parts.values() for layer in part.layers}))
        self.trace = None
        for name, part in parts.items():
            if name != first:
                part.pause()

    @property
    def current(self):
        return self.parts[self.mode]

    @property
    def runner(self):
        return self.current.runner

    @property
    def seconds(self) -> float:
        return self.current.seconds

    def record(self, trace) -> None:
        """Write what the parts do into a Trace from now on."""
        self.trace = trace
        for part in self.parts.values():
            part.record(trace)

    def attach(self, features: Features) -> None:
        """Where the engine keeps the target's features, for all parts."""
        for part in self.parts.values():
            part.attach(features)

    def propose(self, plan):
        return self.current.propose(plan)

    def verify(self, *args):
        return self.current.verify(*args)

    def observe(self, plan, trees, paths, offsets, features, seconds: float) -> None:
        part = self.current
        own = columns(features, self.layers, part.layers) if part.layers else None
        part.observe(plan, trees, paths, offsets, own, seconds)

    def switch(self, mode: str) -> None:
        """Another part takes over with the next proposal."""
        self.current.pause()
        self.mode = mode

    def pause(self) -> None:
        self.current.pause()

    def close(self) -> None:
        for part in self.parts.values():
            part.close()

    def release(self, sequence) -> None:
        for part in self.parts.values():
            part.release(sequence)
