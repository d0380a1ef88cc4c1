"""The systems that bench.decode can measure. Each module here has a class Peer, made in a worker of its own.

Peer(cores, target, precision, mode, **options): target is a model folder; whoever lacks its package or file raises
with one sentence that says what to install. generate(ids, max_tokens) decodes greedily past any end-of-sequence
token and returns what `timeline` makes of it.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class System:
    factory: str  # "module:class" for a worker
    modes: tuple[str, ...]
    precisions: tuple[str, ...]  # the first ones that matter come first


SYSTEMS = {
    "ssd": System("bench.peers.ssd:Peer", ("ar", "sd", "ssd", "auto"), ("bf16", "int8", "q4", "fp32")),
    "transformers": System("bench.peers.transformers:Peer", ("ar", "lookup"), ("bf16", "fp32")),
    "llama_cpp": System("bench.peers.llama_cpp:Peer", ("ar", "lookup"), ("Q4_1", "Q8_0", "F16")),
}


def timeline(start: float, arrivals: list[tuple[float, list[int]]], limit: int) -> dict:
    """What a run came to: {"tokens", "prefill_seconds", "decode_seconds", "decode_tokens"}.

    start: when generation was asked for; arrivals: (time, tokens) of each piece as it came. Prefill lasts to the
    first piece, whose tokens do not count as decoded; tokens past the limit are not counted.
    """
    tokens, decoded, end = [], 0, arrivals[0][0]
    for i, (when, piece) in enumerate(arrivals):
        taken = piece[: limit - len(tokens)]
        if taken:
            tokens, end = tokens + taken, when
            decoded += len(taken) if i else 0
    return {
        "tokens": tokens,
        "prefill_seconds": arrivals[0][0] - start,
        "decode_seconds": end - arrivals[0][0],
        "decode_tokens": decoded,
    }
