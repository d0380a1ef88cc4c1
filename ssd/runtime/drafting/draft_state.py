"""The draft's side of one sequence: which tokens and nodes have KV in the draft's cache, and the rows that are due."""

from collections.abc import Iterator
from hashlib import blake2b
from itertools import takewhile

import numpy as np
import torch

from ..engine.sequence import Sequence
from ..engine.tree import Tree
from .context_lookup import ContextLookup
from .draft_memory import PAGE_SIZE
from .draft_runner import DraftRows, DraftRunner


class DraftState:
    """One sequence in one slot of a DraftRunner.

    The KV of token i is at index i - shift of the slot, that of node n of a tree at index base + n. tokens: int64
    [capacity], the confirmed ones first; features: the target's by token, float32, where the draft reads them.
    """

    def __init__(self, runner: DraftRunner, slot: int, sequence: Sequence, tokens: np.ndarray, features=None):
        self.runner, self.slot = runner, slot
        self.tokens, self.features = tokens, features
        self.num_tokens = 0  # confirmed tokens
        self.cached = 0  # confirmed tokens with KV, computed from true features
        self.done: set[int] = set()  # nodes with KV
        self.lookup = ContextLookup()
        self.names: list[bytes] = []  # of the first blocks, as far as anybody asked
        self.named = 0  # blocks that can be found
        self.before = runner.pages.names_of(sequence)
        runner.pages.drop(slot)

    @property
    def base(self) -> int:
        """KV index of node 0."""
        return self.num_tokens - self.runner.draft.shift

    @property
    def fresh(self) -> int:
        """Confirmed tokens without KV, the root among them."""
        return self.num_tokens - max(self.cached, self.runner.draft.shift)

    def confirm(self, num_tokens: int) -> None:
        """So many tokens are confirmed now; what was known of nodes no longer holds."""
        self.lookup.extend(self.tokens[self.num_tokens : num_tokens].tolist())
        self.num_tokens = num_tokens
        self.done = set()

    def accept(self, path: list[int]) -> list[tuple[int, int, int]]:
        """Count the accepted nodes of a path as cached tokens, as far as they have KV. Returns the moves of their KV.

        A feature draft computed its nodes from its own hidden states, so it computes them again.
        """
        if self.runner.own or self.cached < self.num_tokens:
            return []
        kept = list(takewhile(self.done.__contains__, path))
        self.cached += len(kept)
        return [(self.slot, self.base + node, self.base + k) for k, node in enumerate(kept)]

    # ---- pages ----

    def reserve(self, nodes: int) -> bool:
        """Whether there are pages for the confirmed tokens and so many nodes. Without them the slot has none at all,
        and starts again when there are."""
        pages, shift = self.runner.pages, self.runner.draft.shift
        if not pages.held[self.slot]:
            self.done = set()
            known = (self.base - 1) // PAGE_SIZE  # blocks before the root, which is always computed
            self.named = pages.find(self.slot, (self.name(block) for block in range(known)))
            self.cached = self.named and self.named * PAGE_SIZE + shift
        for block in range(self.named, (self.cached - shift) // PAGE_SIZE):
            pages.name(self.slot, block, self.name(block))
            self.named = block + 1
        granted = pages.reserve(self.slot, self.base + nodes)
        if not granted:
            self.cached, self.done = 0, set()
        return granted

    def name(self, block: int) -> bytes:
        """128 bits that name a block by all tokens on which its KV depends."""
        while len(self.names) <= block:
            begin, end = (n and n * PAGE_SIZE + self.runner.draft.shift for n in (len(self.names), len(self.names) + 1))
            before = self.names[-1] if self.names else self.before
            self.names.append(blake2b(before + self.tokens[begin:end].tobytes(), digest_size=16).digest())
        return self.names[block]

    # ---- rows of a pass ----

    def prompt_rows(self, count: int) -> tuple[DraftRows, torch.Tensor | None]:
        """Rows of the next tokens without KV, none of them the root, and what enters beside them."""
        shift = self.runner.draft.shift
        begin = max(self.cached, shift)
        end = begin + count
        span = range(begin - shift, end - shift)
        rows = DraftRows(self.slot, begin - shift, self.tokens[begin:end].tolist(), span, span, None, [])
        return rows, self.runner.hidden(self.features, begin, end)

    def rows(self, tree: Tree, nodes: list[int], fresh: int = 0) -> DraftRows:
        """Rows of the newest tokens, `fresh` of them, and of nodes; with logits of the root and of the nodes."""
        begin = self.base - fresh
        tokens = self.tokens[self.num_tokens - fresh : self.num_tokens].tolist()
        bits = None
        if nodes:
            below = (1 << fresh) - 1
            bits = [(1 << k + 1) - 1 for k in range(fresh)] + [below | tree.bits[n] >> 1 << fresh for n in nodes]
        return DraftRows(
            self.slot,
            prefix=begin,
            tokens=tokens + [tree.tokens[n] for n in nodes],
            at=[*range(begin, self.base), *(self.base + n for n in nodes)],
            positions=[*range(begin, self.base), *(self.base + tree.depth[n] - 1 for n in nodes)],
            bits=bits,
            outputs=range(max(fresh - 1, 0), fresh + len(nodes)),
        )

    def computed(self, nodes: list[int], fresh: int) -> None:
        """A pass over these rows is done."""
        self.done.update(nodes)
        if fresh:
            self.cached = self.num_tokens

    def hidden(self, fresh: int) -> torch.Tensor | None:
        """What enters beside the newest tokens, `fresh` of them: the features of the tokens before."""
        return self.runner.hidden(self.features, self.num_tokens - fresh, self.num_tokens)


def prefill(states: list[DraftState], chunk: int) -> Iterator[None]:
    """Passes of `chunk` rows, one for each step of the iterator, until what is left of all states fits into one."""
    while sum(state.fresh for state in states) > max(chunk, len(states)):
        room, found = chunk, []
        for state in states:
            count = min(state.fresh - 1, room)
            if count > 0:
                found.append((state, *state.prompt_rows(count)))
                room -= count
        runner = states[0].runner
        runner.forward([rows for _, rows, _ in found], torch.cat([h for *_, h in found]) if runner.own else None)
        for state, rows, _ in found:
            state.cached = rows.at.stop + runner.draft.shift
        yield
