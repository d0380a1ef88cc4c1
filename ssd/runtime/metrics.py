"""Counts and times of an engine."""

from dataclasses import dataclass


@dataclass
class Metrics:
    """Sums over passes, times in seconds.

    A pass in which every row decodes is a decode pass; one that holds rows of a prompt counts as prefill, with the
    decoding rows that it carries. A pass lasts from planning to the text of its tokens; the engine's own share is
    what the forward and the sampling operator leave.
    """

    prefill_passes: int = 0
    prefill_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_passes: int = 0
    decode_tokens: int = 0
    decode_seconds: float = 0.0
    decode_forward_seconds: float = 0.0
    decode_sample_seconds: float = 0.0

    def add(self, prefill_rows: int, tokens: int, seconds: float, forward: float, sample: float) -> None:
        if prefill_rows:
            self.prefill_passes += 1
            self.prefill_tokens += prefill_rows
            self.prefill_seconds += seconds
        else:
            self.decode_passes += 1
            self.decode_tokens += tokens
            self.decode_seconds += seconds
            self.decode_forward_seconds += forward
            self.decode_sample_seconds += sample

    def stats(self) -> dict:
        """The documented statistics. None: does not apply to this mode, or nothing was decoded.

        tokens_per_second: tokens of decode passes by their time. rounds: verifications, counted per request; plain
        decoding emits one token in each. verify_ms: mean forward time of a decode pass. overhead_fraction: the
        engine's own share of decode passes.
        """
        seconds, passes = self.decode_seconds, self.decode_passes
        own = seconds - self.decode_forward_seconds - self.decode_sample_seconds
        none = {"count": 0, "mean_ms": None}
        return {
            "tokens_per_second": self.decode_tokens / seconds if passes else None,
            "prefill_seconds": self.prefill_seconds,
            "decode_seconds": seconds,
            "prefill_tokens": self.prefill_tokens,
            "decode_tokens": self.decode_tokens,
            "rounds": self.decode_tokens,
            "mean_accepted_length": 1.0 if self.decode_tokens else None,
            "acceptance_rate": None,
            "acceptance_per_position": [],
            "hit_rate": None,
            "recoveries": {name: dict(none) for name in ("local_retry", "rollback", "model_switch")},
            "verify_ms": 1e3 * self.decode_forward_seconds / passes if passes else None,
            "draft_ms": 0.0,
            "wait_ms": 0.0,
            "overhead_fraction": own / seconds if passes else None,
            "bandwidth_fraction": {"verify": None, "draft": None},
        }
