"""How much KV target and drafts hold: one number of tokens, found before the first request.

A sequence takes pages of every model that serves it, so each model gets the pages of that many tokens, whatever a page
of it weighs. On a GPU they come from the memory that is free behind the weights. On the CPU pages take no memory before
they are written.
"""

from bisect import bisect_right
from dataclasses import dataclass

import torch

from .free_memory import GIB, free_memory

LEAST = 1024  # tokens; a cache of fewer is worth little
SPARED = 0.1, GIB  # of what is free on a GPU, a share and some bytes, for what passes compute


@dataclass(frozen=True)
class KVPart:
    """The KV of one model: the pages of the tokens that requests share, with `spare` ones for what is speculated, and
    `most` at most."""

    name: str  # "target", "draft", "backup draft"
    device: torch.device
    page_bytes: int
    page_size: int  # tokens
    spare: int
    most: int | None = None
    weights: int = 0  # bytes of the model

    def pages(self, tokens: int) -> int:
        pages = -(-tokens // self.page_size) + self.spare
        return pages if self.most is None else min(pages, self.most)

    def bytes(self, tokens: int) -> int:
        return self.pages(tokens) * self.page_bytes


def size_kv(parts: list[KVPart], wanted: int | None, usual: int, most: int) -> int:
    """The tokens of KV that requests share: as many as are wanted, or else as fit.

    parts: the target first. Where nothing is wanted, a target on the CPU has the usual number of tokens, on a GPU the
    most that requests can need; fewer where they do not fit. Raises MemoryError, one sentence, where what is wanted
    does not fit, or too little does.
    """
    found = wanted or (usual if parts[0].device.type == "cpu" else most)
    for device in dict.fromkeys(part.device for part in parts):
        here = [part for part in parts if part.device == device]
        room = room_for_kv(device)
        if room is None:
            continue
        fits = bisect_right(range(found + 1), room, key=lambda n: sum(part.bytes(n) for part in here)) - 1
        if fits < (wanted or min(found, LEAST)):
            raise MemoryError(refusal(here, wanted or min(found, LEAST), room, fits))
        found = min(found, fits)
    return found


def room_for_kv(device: torch.device) -> int | None:
    """Bytes that KV caches may take on a device, None where nobody knows."""
    free = free_memory(device)
    if free is None or device.type == "cpu":
        return free
    share, some = SPARED
    return max(0, int(free * (1 - share)) - some)


def refusal(parts: list[KVPart], tokens: int, room: int, fits: int) -> str:
    """One sentence on what is needed, what is free, and what to ask for instead."""
    needs = " and ".join(f"{part.bytes(tokens) / GIB:.2f} GiB for the {part.name}" for part in parts)
    weights, free = sum(part.weights for part in parts) / GIB, room / GIB
    instead = f"ask for at most {fits} tokens" if fits >= LEAST else "choose smaller models, formats or another device"
    return (
        f"kv_tokens: {tokens} tokens of KV cache take {needs} on {parts[0].device}, where {free:.2f} GiB are free for "
        f"that beside {weights:.2f} GiB of weights; {instead}"
    )
