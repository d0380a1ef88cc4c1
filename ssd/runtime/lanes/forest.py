"""The draft lane's side of one sequence: confirmed tokens, the speculation in flight, and the branches prepared for
its outcomes, all of them nodes behind one prefix."""

import numpy as np
import torch

from ..drafting.context_lookup import ContextLookup
from ..drafting.draft_runner import DraftRows, DraftRunner
from ..engine.tree import Tree
from .fan_out import RANKS


class Forest:
    """Nodes 0 to flight - 1 are the speculation in flight, the others bonus tokens and what follows them.

    The KV of node i belongs at index base + i. Once node i has been computed (done), best[i] are the tokens that the
    draft proposes below it, bonus[i] those that it takes for likely where none of them is accepted, q[i] what they were
    sampled from if they were, and feature[i] its own hidden state. Node -1, the root, is the
    newest confirmed token.
    """

    def __init__(self, runner: DraftRunner, slot: int, request, tokens, features):
        self.runner, self.slot, self.params, self.seed = runner, slot, request.params, request.seed
        self.prompt_len, self.logits_processors = request.prompt_len, request.logits_processors
        self.tokens: np.ndarray = tokens  # int64 [capacity]
        self.features: torch.Tensor | None = features  # [capacity, width] of the target
        self.num_tokens = self.cached = 0
        self.lookup = ContextLookup()
        self.epoch = self.born = 0
        self.hit = False
        self.clear()

    def clear(self) -> None:
        """Without a speculation."""
        self.tree, self.flight = Tree(), 0
        self.best: dict[int, list[int]] = {}
        self.bonus: dict[int, list[int]] = {}
        self.q: dict[int, torch.Tensor] = {}
        self.feature: dict[int, torch.Tensor] = {}
        self.done: set[int] = set()
        self.branches: list[int] = []  # bonus nodes, in the order of publication

    @property
    def answer(self) -> np.ndarray:
        """The confirmed tokens behind the prompt."""
        return self.tokens[self.prompt_len : self.num_tokens]

    @property
    def base(self) -> int:
        return self.num_tokens - self.runner.draft.shift

    def position(self, node: int) -> int:
        """Index in the sequence of the token that follows a node."""
        return self.num_tokens + (self.tree.depth[node] if node >= 0 else 0)

    # ---- outcomes ----

    def advance(self, confirmed, node: int, branch: int, flight: Tree) -> None:
        """Take an outcome: the walk ended at that node, `confirmed` are its tokens and the bonus token; branch: the one
        adopted, -1 where flight (a fallback, perhaps empty) is verified next. Without confirmed tokens the nodes in
        flight are a fallback that was drafted here."""
        if not confirmed:
            kept, path, bonus = {n: n for n in range(len(flight))}, [], -1
        else:
            path, bonus = self.tree.nodes(node), self.branches[branch] if branch >= 0 else None
            kept = self._below(bonus, flight) if bonus is not None else {}
        old, begin = self.base, self.num_tokens
        told = [(self.best, "best"), (self.bonus, "bonus"), (self.feature, "feature")]
        tree_done, moves = self.done, []
        if confirmed and not self.runner.own:  # rows of accepted nodes are what they would be if computed again
            for k, n in enumerate([*path, bonus]):
                if n not in tree_done or self.cached < begin:
                    break
                moves.append((n, old + k))
            self.cached += len(moves)
        self._confirm(confirmed, flight)
        for n, m in [*kept.items(), (bonus, -1)]:
            for old_values, name in told:
                if n in old_values:
                    getattr(self, name)[m] = old_values[n]
            if n in tree_done and m >= 0:
                self.done.add(m)
                moves.append((n, self.base + m))
        self.runner.move([(self.slot, old + n, new) for n, new in moves])

    def restart(self, confirmed, flight: Tree) -> None:
        """All but the confirmed tokens is lost; KV of the cached ones stands."""
        self._confirm(confirmed, flight)

    def _confirm(self, tokens, flight: Tree) -> None:
        """More of the text, and what is verified next."""
        begin, self.num_tokens = self.num_tokens, self.num_tokens + len(tokens)
        self.tokens[begin : self.num_tokens] = tokens
        self.lookup.extend(tokens)
        self.clear()
        self.tree, self.flight = flight, len(flight)

    def _below(self, bonus: int, flight: Tree) -> dict[int, int]:
        """Old node to new one: the branch below a bonus node as far as it was taken, in its order."""
        below = [bonus]
        for i in range(bonus + 1, len(self.tree)):
            if self.tree.parents[i] in below:
                below.append(i)
        return dict(zip(below[1:], range(len(flight)), strict=False))

    # ---- growth ----

    @property
    def fresh(self) -> int:
        """Confirmed tokens without KV, the root among them."""
        return self.num_tokens - max(self.cached, self.runner.draft.shift)

    def due(self) -> list[int]:
        """Nodes in flight that can be computed: those whose parent has a hidden state, or for an independent draft
        those whose ancestors are done."""
        ready = self.feature if self.runner.own else self.done | {-1}
        out = []
        for node in range(self.flight):
            parent = self.tree.parents[node]
            if node not in self.done and (parent in ready or (not self.runner.own and parent in out)):
                out.append(node)
        return out

    def rows(self, nodes: list[int], fresh: int = 0) -> tuple[DraftRows, torch.Tensor | None]:
        """Rows of the newest confirmed tokens and of nodes, with what enters beside them."""
        tree, end = self.tree, self.num_tokens
        begin, shift = end - fresh, self.runner.draft.shift
        tokens = self.tokens[begin:end].tolist() + [tree.tokens[n] for n in nodes]
        at = [*range(begin - shift, end - shift), *(self.base + n for n in nodes)]
        positions = [*range(begin - shift, end - shift), *(self.base + tree.depth[n] - 1 for n in nodes)]
        below = (1 << fresh) - 1
        bits = [(1 << k + 1) - 1 for k in range(fresh)] + [below | tree.bits[n] >> 1 << fresh for n in nodes]
        outputs = range(max(fresh - 1, 0), len(tokens))
        hidden = None
        if self.runner.own:
            parts = [self.runner.hidden(self.features, begin, end)] if fresh else []
            hidden = torch.cat([*parts, *(self.feature[tree.parents[n]][None] for n in nodes)])
        return DraftRows(self.slot, begin - shift, tokens, at, positions, bits, outputs), hidden

    def computed(self, nodes: list[int], fresh: int, found: list[tuple], features: torch.Tensor | None) -> None:
        """Keep what a pass over rows(nodes, fresh) gave. found: of each row with an output (best, bonus, q or None);
        features: of all rows."""
        for k, node in enumerate([*([-1] if fresh else []), *nodes]):
            self.best[node], self.bonus[node], q = found[k]
            if q is not None:
                self.q[node] = q
            if self.runner.own:
                self.feature[node] = features[max(fresh - 1, 0) + k]
            if node >= 0:
                self.done.add(node)
        if fresh:
            self.cached = self.num_tokens

    def add(self, token: int, parent: int) -> int:
        """One more node. Returns its number."""
        return self.tree.add(token, parent)

    def children(self, node: int, width: int) -> list[int]:
        """So many tokens below a node; the last comes again where fewer are known."""
        best = [t for t in self.best[node] if t >= 0]
        if width > 1 and node not in self.q:  # what was sampled without replacement takes no other
            best = list(dict.fromkeys([*best[:1], *self._echoed(node)[:1], *best[1:]]))
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
        """Place of a bonus token among the candidates of a node, None where it is not among them."""
        free = self.candidates(node)
        return free.index(token) if token in free else None

    def candidates(self, node: int) -> list[int]:
        """Bonus tokens of a node, likeliest first: what the draft ranks, and between its first ones what the text had
        in the same place before; without the children that are verified, which were accepted if they were drawn."""
        if node not in self.bonus:
            return []
        tree, flight = self.tree, self.flight
        taken = {t for t, parent in zip(tree.tokens[:flight], tree.parents[:flight], strict=True) if parent == node}
        ranked = [t for t in self.bonus[node] if t >= 0 and t not in taken]
        echoed = [t for t in self._echoed(node) if t not in taken]
        first, second = (echoed, ranked) if taken else (ranked, echoed)  # where the draft's best was refused, the text
        return list(dict.fromkeys([*first[:1], *second[:1], *echoed[1:2], *ranked]))[:RANKS]

    def _echoed(self, node: int) -> list[int]:
        return [t for t, _ in self.lookup.after(self.tree.path(node))]
