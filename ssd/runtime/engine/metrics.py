"""Counts and times of an engine."""

from dataclasses import dataclass, field
from itertools import zip_longest


@dataclass
class Metrics:
    """Sums over passes, times in seconds.

    A pass in which every row decodes is a decode pass; one that holds rows of a prompt counts as prefill, with the
    decoding rows that it carries. A pass lasts from planning to the text of its tokens. The engine's own share of it is
    what drafting, forward pass and verification leave.
    """

    prefill_passes: int = 0
    prefill_tokens: int = 0
    prefill_seconds: float = 0.0
    cached_prompt_tokens: int = 0
    preemptions: int = 0
    decode_passes: int = 0
    decode_tokens: int = 0
    decode_seconds: float = 0.0
    decode_draft_seconds: float = 0.0
    decode_forward_seconds: float = 0.0
    decode_sample_seconds: float = 0.0
    rounds: int = 0  # verifications of decode passes, counted per request
    proposed: list[int] = field(default_factory=list)  # by depth: rounds with a node there below an accepted path
    accepted: list[int] = field(default_factory=list)  # by depth: rounds that accepted one
    origins: dict[str, list[int]] = field(default_factory=dict)  # rounds and tokens by where the speculation came from
    shapes: dict[tuple[int, int], int] = field(default_factory=dict)  # rounds by (tokens, accepted ones) of a tree

    def add(self, round, tokens: int, seconds: float, speculative: bool) -> None:
        """Count a Round that emitted so many tokens in a pass of so many seconds. speculative: tell its trees apart by
        origin and shape."""
        if round.plan.prefill_rows:
            self.prefill_passes += 1
            self.prefill_tokens += round.plan.prefill_rows
            self.prefill_seconds += seconds
            return
        self.decode_passes += 1
        self.decode_tokens += tokens
        self.decode_seconds += seconds
        self.decode_draft_seconds += round.draft_seconds
        stages = round.stages
        self.decode_forward_seconds += stages.forwarded - stages.filled
        self.decode_sample_seconds += stages.verified - stages.forwarded
        self.rounds += len(round) if speculative else tokens
        for tree, path in ((part.tree, part.path) for part in round if speculative):
            count = self.origins.setdefault(tree.origin if tree else "none", [0, 0])
            count[0] += 1
            count[1] += len(path or ()) + 1
            shape = (len(tree) if tree else 0, len(path or ()))
            self.shapes[shape] = self.shapes.get(shape, 0) + 1
            if tree:
                end = path[-1] if path else -1
                tried = len(path) + (end in tree.parents)
                self.proposed = _sum(self.proposed, [1] * tried)
                self.accepted = _sum(self.accepted, [1] * len(path))

    def stats(self) -> dict:
        """The documented statistics. None: does not apply to this mode, or nothing was decoded.

        tokens_per_second: tokens of decode passes by their time. prefill_tokens: rows computed, those of requests that
        go on after a preemption included; cached_prompt_tokens: those found instead. rounds: verifications, counted per
        request; plain decoding emits one token in each. acceptance_per_position: by depth, of the rounds that verified
        a token there after accepting those before it, the share that accepted one; acceptance_rate: the same over all
        depths. rounds_by_origin, accepted_length_by_origin: rounds whose speculation was a hit, a fallback, drafted
        (draft) or none, and their tokens. verify_ms and draft_ms: mean time of forward and of drafting in a decode
        pass. overhead_fraction: the engine's own share of decode passes.
        """
        seconds, passes = self.decode_seconds, self.decode_passes
        own = seconds - self.decode_draft_seconds - self.decode_forward_seconds - self.decode_sample_seconds
        none = {"count": 0, "mean_ms": None}
        pairs = list(zip_longest(self.accepted, self.proposed, fillvalue=0))
        return {
            "tokens_per_second": self.decode_tokens / seconds if passes else None,
            "prefill_seconds": self.prefill_seconds,
            "decode_seconds": seconds,
            "prefill_tokens": self.prefill_tokens,
            "cached_prompt_tokens": self.cached_prompt_tokens,
            "preemptions": self.preemptions,
            "decode_tokens": self.decode_tokens,
            "decode_passes": passes,
            "rounds": self.rounds,
            "mean_accepted_length": self.decode_tokens / self.rounds if self.rounds else None,
            "rounds_by_origin": {name: n for name, (n, _) in self.origins.items()},
            "accepted_length_by_origin": {name: tokens / n for name, (n, tokens) in self.origins.items()},
            "acceptance_rate": sum(self.accepted) / sum(self.proposed) if self.proposed else None,
            "acceptance_per_position": [a / p for a, p in pairs],
            "hit_rate": None,
            "recoveries": {name: dict(none) for name in ("local_retry", "rollback", "model_switch")},
            "verify_ms": 1e3 * self.decode_forward_seconds / passes if passes else None,
            "draft_ms": 1e3 * self.decode_draft_seconds / passes if passes else 0.0,
            "wait_ms": 0.0,
            "overhead_fraction": own / seconds if passes else None,
            "bandwidth_fraction": {"verify": None, "draft": None},
        }


@dataclass
class Recoveries:
    """How often one kind of recovery was needed, and how long it took in all."""

    count: int = 0
    seconds: float = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        """Count recoveries that took so long each."""
        self.count += count
        self.seconds += count * seconds

    def __add__(self, other: "Recoveries") -> "Recoveries":
        return Recoveries(self.count + other.count, self.seconds + other.seconds)

    def stats(self) -> dict:
        return {"count": self.count, "mean_ms": 1e3 * self.seconds / self.count if self.count else None}


def _sum(a: list[int], b: list[int]) -> list[int]:
    return [x + y for x, y in zip_longest(a, b, fillvalue=0)]
