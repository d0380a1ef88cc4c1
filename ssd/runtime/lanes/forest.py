"""The draft lane's side of one sequence: confirmed tokens, the speculation in flight, and the branches prepared for
its outcomes, all of them nodes behind one prefix."""

from typing import NamedTuple

import numpy as np
import torch

from ..drafting.draft_runner import DraftRows, DraftRunner
from ..drafting.draft_state import DraftState
from ..engine.tree import Tree
from .fan_out import RANKS
from .lane_slot import LaneSlot


class Computed(NamedTuple):
    """What a pass of the draft says about a node."""

    best: list[int]  # tokens that the draft proposes below it, best first
    bonus: list[int]  # tokens likely to be drawn where none of its children is accepted, best first
    q: torch.Tensor | None  # float32 [vocab of the draft], what best was sampled from; None unless it was
    feature: torch.Tensor | None  # the draft's own hidden state, None where it reads no features


class Forest(DraftState):
    """Nodes 0 to flight - 1 are the speculation in flight, the others bonus tokens and what follows them.

    Node -1, the root, is the newest confirmed token. known: what a pass said about each computed node.
    """

    def __init__(self, runner: DraftRunner, slot: LaneSlot, born: int):
        sequence, width = slot.sequence, runner.draft.feature_width if runner.own else 0
        capacity = len(sequence.tokens)
        features = torch.empty(capacity, width) if width else None  # of the target
        super().__init__(runner, slot.index, sequence, np.empty(capacity, np.int64), features)
        self.params, self.seed, self.prompt_len = sequence.params, sequence.seed, sequence.prompt_len
        self.record, self.logits_processors = slot, slot.processors
        self.epoch, self.born, self.hit = 0, born, False
        self.clear()

    def clear(self) -> None:
        """Drop the speculation."""
        self.tree, self.flight = Tree(), 0
        self.known: dict[int, Computed] = {}
        self.branches: list[int] = []  # bonus nodes, in the order of publication

    @property
    def answer(self) -> np.ndarray:
        """The confirmed tokens behind the prompt."""
        return self.tokens[self.prompt_len : self.num_tokens]

    def position(self, node: int) -> int:
        """Index in the sequence of the token that follows a node."""
        return self.num_tokens + (self.tree.depth[node] if node >= 0 else 0)

    # ---- outcomes ----

    def advance(self, confirmed: list[int], node: int, branch: int, flight: Tree) -> None:
        """Take an outcome: the walk ended at a node, and `confirmed` are its tokens and the bonus token.

        branch: the one that the verify lane adopted, -1 where flight (a fallback, perhaps empty) is verified next.
        """
        path, kept = self.tree.nodes(node), {}  # kept: old node to new one
        if branch >= 0:
            bonus = self.branches[branch]
            kept = {bonus: -1} | dict(zip(self._below(bonus), range(len(flight)), strict=False))
            path.append(bonus)
        self.runner.move(self.accept(path) + self._carry(confirmed, kept, flight))

    def verify_answer(self, flight: Tree) -> None:
        """Take note that the speculation that was drafted here after a miss, the first nodes, is verified now."""
        self._carry([], {node: node for node in range(-1, len(flight))}, flight)

    def restart(self, confirmed: list[int], flight: Tree) -> None:
        """Drop everything but the confirmed tokens and their KV."""
        self._carry(confirmed, {}, flight)

    def _carry(self, confirmed: list[int], kept: dict[int, int], flight: Tree) -> list[tuple[int, int, int]]:
        """Confirm tokens and put flight in the place of the tree, with all that is known of the nodes that are kept.
        Returns the moves of their KV."""
        known, done, base, moves = self.known, self.done, self.base, []
        end = self.num_tokens + len(confirmed)
        self.tokens[self.num_tokens : end] = confirmed
        self.confirm(end)
        self.clear()
        self.tree, self.flight = flight, len(flight)
        for old, new in kept.items():
            if old in known:
                self.known[new] = known[old]
            if old in done and new >= 0:
                self.done.add(new)
                moves.append((self.slot, base + old, self.base + new))
        return moves

    def _below(self, bonus: int) -> list[int]:
        """The nodes of the branch below a bonus node, in order."""
        found = {bonus}
        for node in range(bonus + 1, len(self.tree)):
            if self.tree.parents[node] in found:
                found.add(node)
        return sorted(found - {bonus})

    # ---- growth ----

    def due(self) -> list[int]:
        """Nodes in flight that can be computed.

        A feature draft needs the hidden state of the parent, an independent one all ancestors in the cache or in this
        pass.
        """
        out, ready = [], set(self.known) if self.runner.own else self.done | {-1}
        for node in range(self.flight):
            if node not in self.done and self.tree.parents[node] in ready:
                out.append(node)
                if not self.runner.own:
                    ready.add(node)
        return out

    def pass_rows(self, nodes: list[int], fresh: int) -> tuple[DraftRows, torch.Tensor | None]:
        """Rows of the newest tokens and of nodes, with what enters beside them."""
        hidden = None
        if self.runner.own:
            parts = [self.hidden(fresh)] if fresh else []
            hidden = torch.cat([*parts, *(self.known[self.tree.parents[n]].feature[None] for n in nodes)])
        return self.rows(self.tree, nodes, fresh), hidden

    def learn(self, nodes: list[int], fresh: int, found: list[Computed]) -> None:
        """Keep what a pass over pass_rows(nodes, fresh) gave: for the root, if it was there, and for each node."""
        self.known.update(zip([-1] * (fresh > 0) + nodes, found, strict=True))
        self.computed(nodes, fresh)

    def children(self, node: int, width: int) -> list[int]:
        """So many tokens below a node; the last comes again where fewer are known."""
        known = self.known[node]
        best = [t for t in known.best if t >= 0]
        if width > 1 and known.q is None:  # what was sampled without replacement takes no other
            best = list(dict.fromkeys([*best[:1], *self._seen_before(node)[:1], *best[1:]]))
        best = best[:width]
        return best + best[-1:] * (width - len(best))

    def choose(self, counts: list[int]) -> list[tuple[int, int]]:
        """Add bonus nodes: counts[0] below the root, counts[i + 1] below node i, the best that are no children of it.
        Returns their keys (node, token)."""
        keys = []
        for node, count in enumerate(counts, -1):
            for token in self.candidates(node)[:count]:
                self.branches.append(self.tree.add(token, node))
                keys.append((node, token))
        return keys

    def rank(self, node: int, token: int) -> int | None:
        """Rank of a bonus token among the candidates of a node, None where it is not among them."""
        free = self.candidates(node)
        return free.index(token) if token in free else None

    def candidates(self, node: int) -> list[int]:
        """Bonus tokens of a node, likeliest first, without the children that are being verified: were one of them
        drawn, it would be accepted. What the text had in the same context before stands between the draft's own."""
        if node not in self.known:
            return []
        tree, flight = self.tree, self.flight
        taken = {t for t, parent in zip(tree.tokens[:flight], tree.parents[:flight], strict=True) if parent == node}
        ranked = [t for t in self.known[node].bonus if t >= 0 and t not in taken]
        seen = [t for t in self._seen_before(node) if t not in taken]
        first, second = (
            (seen, ranked) if taken else (ranked, seen)
        )  # where the draft's best was refused, the text leads
        return list(dict.fromkeys([*first[:1], *second[:1], *seen[1:2], *ranked]))[:RANKS]

    def _seen_before(self, node: int) -> list[int]:
        return [t for t, _ in self.lookup.after(self.tree.path(node))]
