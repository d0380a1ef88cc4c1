"""The systems that bench.decode can measure. Each module here has a class Peer, which runs in a worker of its own.

Peer(cores, target, precision, mode, **options) loads a system; target is a model folder. If its package or a file is
missing, it raises an error that says in one sentence what to install. generate(ids, max_tokens) decodes greedily past
any end-of-sequence token and returns the dictionary of `timeline`. Modes of other systems: "ar" (plain), "lookup"
(prompt lookup), "assisted" (speculation with the draft of the option `assistant`, an independent model of the same
vocabulary).
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class System:
    factory: str  # "module:class" for a worker
    modes: tuple[str, ...]
    precisions: tuple[str, ...]  # the most important first
    gpu: bool = False  # whether it needs a GPU


SYSTEMS = {
    "ssd": System("bench.peers.ssd:Peer", ("ar", "sd", "ssd", "auto"), ("bf16", "int8", "q4", "fp32")),
    "transformers": System("bench.peers.transformers:Peer", ("ar", "lookup", "assisted"), ("bf16", "fp32")),
    "llama_cpp": System("bench.peers.llama_cpp:Peer", ("ar", "lookup"), ("Q4_1", "Q8_0", "F16")),
    "ctranslate2": System("bench.peers.ctranslate2:Peer", ("ar",), ("int8", "fp32")),
    "openvino": System("bench.peers.openvino:Peer", ("ar", "lookup", "assisted"), ("Q8_0", "bf16", "F16")),
    "vllm": System("bench.peers.vllm:Peer", ("ar", "lookup", "assisted"), ("bf16", "fp32"), gpu=True),
    "sglang": System("bench.peers.sglang:Peer", ("ar", "lookup", "assisted"), ("bf16", "fp32"), gpu=True),
}


def timeline(start: float, arrivals: list[tuple[float, list[int]]], limit: int) -> dict:
    """The result of a run: {"tokens", "prefill_seconds", "decode_seconds", "decode_tokens"}.

    start: time of the call; arrivals: (time, tokens) of each piece. Prefill lasts until the first piece, whose tokens
    do not count as decoded. Tokens past the limit are dropped.
    """
    tokens = []
    decoded = 0
    end = arrivals[0][0]
    for i, (when, piece) in enumerate(arrivals):
        taken = piece[: limit - len(tokens)]
        if taken:
            tokens += taken
            end = when
            decoded += len(taken) if i else 0
    return {
        "tokens": tokens,
        "prefill_seconds": arrivals[0][0] - start,
        "decode_seconds": end - arrivals[0][0],
        "decode_tokens": decoded,
    }


def missing(package: str, install: str | None = None) -> ImportError:
    return ImportError(f"{package} is not installed: pip install {install or package}")


def need_assistant(assistant: str | None) -> str:
    """The folder of the draft. Raises ValueError if none is given."""
    if not assistant:
        raise ValueError("mode assisted needs --assistant with the folder of a draft that needs no features")
    return assistant


def converted(source: Path, kind: str, make: Callable[[Path], object]) -> Path:
    """The file or folder that make(path) writes from a model. It is kept in the cache folder, and made again only when
    the model's file has changed."""
    from ssd.model.cache_folder import cache_folder

    source = source.resolve()
    weights = source / "model.safetensors" if source.is_dir() else source
    stamp = hashlib.sha256(f"{source} {weights.stat().st_mtime_ns}".encode()).hexdigest()[:12]
    path = cache_folder() / "peers" / f"{source.stem}-{stamp}.{kind}"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        making = path.with_name(f"making-{path.name}")
        make(making)
        making.rename(path)
    return path
