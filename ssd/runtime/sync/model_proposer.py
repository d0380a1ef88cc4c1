"""Trees drafted by a model in the calling thread: one batched tree-attention pass a level."""

from itertools import accumulate

import torch

from ssd.model.draft import Draft

from ..devices.placement import CPU, Placement
from ..drafting.context_lookup import ContextLookup
from ..drafting.draft_runner import DraftRows, DraftRunner
from ..engine.features import Features
from ..engine.tree import Tree


class State:
    """The draft's side of one sequence. Its KV stands for the first `cached` tokens, with true features."""

    def __init__(self, slot: int):
        self.slot = slot
        self.cached = 0  # tokens with KV
        self.lookup = ContextLookup()
        self.base = 0  # KV index of the tree's node 0
        self.done: list[int] = []  # nodes with KV, in order


class ModelProposer:
    """Trees drafted by a model for at most max_batch sequences of at most max_len tokens, in the calling thread.

    sampler: how tokens are chosen, CoupledSampler or RejectionSampler.
    """

    def __init__(
        self,
        draft: Draft,
        sampler,
        *,
        max_batch: int,
        max_len: int,
        nodes: int,
        chunk: int = 512,
        placement: Placement = CPU,
    ):
        self.draft, self.sampler, self.chunk = draft, sampler, chunk
        self.runner = DraftRunner(draft, max_batch=max_batch, max_len=max_len, nodes=nodes, placement=placement)
        self.ids = None if draft.ids is None else draft.ids.cpu()  # the target's id of each output
        self.layers = draft.feature_layers
        self.features: Features | None = None  # of the target
        self.free = list(range(max_batch))[::-1]
        self.states: dict[object, State] = {}

    @property
    def steps(self) -> int:
        """Passes so far."""
        return self.runner.passes

    # ---- a round ----

    def propose(self, sequences, limits, thresholds, policy, width: int) -> list[Tree]:
        """For each sequence a tree of at most limits[i] levels, width children of a node and policy.nodes nodes."""
        with self.runner.placement.stream():
            return self._propose(sequences, limits, thresholds, policy, width)

    def _propose(self, sequences, limits, thresholds, policy, width: int) -> list[Tree]:
        trees = [Tree() for _ in sequences]
        for tree, sequence in zip(trees, sequences, strict=True):
            tree.kind = self.sampler.kind(sequence.params)
        fit = [i for i, s in enumerate(sequences) if limits[i] > 0 and s.num_tokens + limits[i] <= self.runner.max_len]
        if not fit:
            return trees
        logits, features = self._catch_up([sequences[i] for i in fit])
        mixed = policy.adaptive and width > 1  # with what the text had
        frontier = [(i, -1) for i in fit]  # nodes whose children the logits tell, in the order of their rows
        for level in range(1, policy.depth + 1):
            wide = width if policy.adaptive or level == 1 else 1
            of = [sequences[i] for i, _ in frontier]
            guessed = [sequences[i].num_tokens + level - 1 for i, _ in frontier]
            logits = self.runner.shape(logits, [(sequences[i], trees[i], node) for i, node in frontier])
            ids, confidence, _, q = self.runner.candidates(self.sampler, logits, of, guessed, wide)
            grown = []
            for row, (i, parent) in enumerate(frontier):
                keep, extend = thresholds[i]
                if q is not None:
                    trees[i].q[parent] = q[row]
                    keep = -1.0
                echoed = self.states[sequences[i]].lookup.after(trees[i].path(parent)) if mixed and q is None else []
                above = trees[i].score[parent] if parent >= 0 else 1.0
                for chance, token, where in policy.calibration.rank(ids[row], confidence[row], wide, echoed):
                    score = above * chance
                    if score < keep or len(trees[i]) == policy.nodes or level > limits[i]:
                        break
                    node = trees[i].add(token, parent, score, where)
                    if score >= extend and level < min(limits[i], policy.depth):
                        grown.append((i, node, row))
            if not grown:
                break
            logits, features = self._extend(sequences, trees, grown, features)
            frontier = [(i, node) for i, node, _ in grown]
        return trees

    def accept(self, sequences, trees, paths) -> None:
        """Keep the KV of accepted nodes. A feature draft computed them from its own features: they are done again."""
        pairs = []
        for sequence, tree, path in zip(sequences, trees, paths, strict=True):
            state = self.states.get(sequence)
            if state is None or not tree or self.layers:
                continue
            for k, node in enumerate(path):
                if node not in state.done:
                    break
                state.cached += 1
                pairs.append((state.slot, state.base + node, state.base + k))
        self.runner.move(pairs)

    def release(self, sequence) -> None:
        state = self.states.pop(sequence, None)
        if state:
            self.free.append(state.slot)

    # ---- passes ----

    def _state(self, sequence) -> State:
        state = self.states.get(sequence)
        if state is None:
            state = self.states[sequence] = State(self.free.pop())
        return state

    def _catch_up(self, sequences):
        """Rows of the tokens that are new to the draft. Returns logits and features of each sequence's newest."""
        states = [self._state(s) for s in sequences]
        shift = self.draft.shift
        while True:
            rows, hidden, budget, last = [], [], self.chunk, True
            for state, sequence in zip(states, sequences, strict=True):
                begin, known = max(state.cached, shift), sequence.num_tokens
                end = min(known, begin + max(budget, 1))
                budget -= end - begin
                last &= end == known
                span = range(begin - shift, end - shift)
                wants = [end - begin - 1] if end == known else []
                rows.append(
                    DraftRows(state.slot, begin - shift, sequence.tokens[begin:end].tolist(), span, span, None, wants)
                )
                hidden.append(self.runner.hidden(self.features.of(sequence, self.layers), begin, end))
                state.cached = end
            if not last:  # those that are there have their newest row computed once more
                for state, r in zip(states, rows, strict=True):
                    state.cached -= len(r.outputs)
            logits, features = self.runner.forward(rows, torch.cat(hidden) if self.layers else None)
            if last:
                ends = [n - 1 for n in accumulate(len(r.tokens) for r in rows)]
                for state, sequence in zip(states, sequences, strict=True):
                    state.lookup.extend(sequence.tokens[state.lookup.size : sequence.num_tokens].tolist())
                    state.base, state.done = sequence.num_tokens - shift, []
                return logits, self.runner.placement.take(features, ends) if self.layers else features

    def _extend(self, sequences, trees, grown, features):
        """Rows of new nodes [(sequence, node, row of its parent in the pass before)]."""
        rows, hidden = [], None
        for i in sorted({i for i, _, _ in grown}):
            state, tree, nodes = self.states[sequences[i]], trees[i], [n for j, n, _ in grown if j == i]
            positions = [state.base + tree.depth[n] - 1 for n in nodes]
            bits = [tree.bits[n] >> 1 for n in nodes]
            at = [state.base + n for n in nodes]
            rows.append(
                DraftRows(
                    state.slot, state.base, [tree.tokens[n] for n in nodes], at, positions, bits, range(len(nodes))
                )
            )
            state.done += nodes
        if self.layers:
            hidden = self.runner.placement.take(features, [row for _, _, row in grown])
        return self.runner.forward(rows, hidden)
