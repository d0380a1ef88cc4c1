"""Trees drafted by a model in the calling thread: one batched tree-attention pass a level."""

from collections.abc import Iterator
from itertools import accumulate

import torch

from ssd.model.draft import Draft

from ..devices.placement import CPU, Placement
from ..drafting.draft_memory import DraftMemory
from ..drafting.draft_runner import DraftRunner
from ..drafting.draft_state import DraftState, prefill
from ..drafting.warm_up import warm_up_draft
from ..engine.features import Features
from ..engine.tree import Tree


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
        memory: DraftMemory | None = None,
    ):
        self.draft, self.sampler, self.chunk = draft, sampler, chunk
        sizes = {"max_batch": max_batch, "max_len": max_len, "nodes": nodes}
        self.runner = DraftRunner(draft, **sizes, placement=placement, memory=memory)
        self.ids = None if draft.ids is None else draft.ids.cpu()  # the target's id of each output
        self.layers = draft.feature_layers
        self.features: Features | None = None  # of the target
        self.free = list(range(max_batch))[::-1]
        self.states: dict[object, DraftState] = {}

    @property
    def steps(self) -> int:
        """Passes so far."""
        return self.runner.passes

    def warm_up(self, width: int) -> Iterator[None]:
        """Run the passes that compile the draft's kernels. width: children of a node at most."""
        return warm_up_draft(self.runner, self.sampler, {1, width}, self.chunk, self.runner.nodes)

    # ---- a round ----

    def propose(self, sequences, limits, thresholds, policy, width: int) -> list[Tree]:
        """For each sequence a tree of at most limits[i] levels, width children of a node and policy.nodes nodes."""
        with self.runner.placement.stream():
            return self._propose(sequences, limits, thresholds, policy, width)

    def _propose(self, sequences, limits, thresholds, policy, width: int) -> list[Tree]:
        trees = [Tree() for _ in sequences]
        for tree, sequence in zip(trees, sequences, strict=True):
            tree.kind, tree.ids = self.sampler.kind(sequence.params), self.ids
        fit = [i for i, s in enumerate(sequences) if limits[i] > 0 and s.num_tokens + limits[i] <= self.runner.max_len]
        fit = [i for i in fit if self._state(sequences[i]).reserve(self.runner.nodes)]
        if not fit:
            return trees
        logits, features = self._catch_up([self.states[sequences[i]] for i in fit])
        mixed = policy.adaptive and width > 1  # with what the text had
        frontier = [(i, -1) for i in fit]  # nodes whose children the logits tell, in the order of their rows
        for level in range(1, policy.depth + 1):
            wide = width if policy.adaptive or level == 1 else 1
            of = [sequences[i] for i, _ in frontier]
            guessed = [sequences[i].num_tokens + level - 1 for i, _ in frontier]
            logits = self.runner.process(logits, [(sequences[i], trees[i], node) for i, node in frontier])
            ids, confidence, _, q = self.runner.candidates(self.sampler, logits, of, guessed, wide)
            grown = []
            for row, (i, parent) in enumerate(frontier):
                keep, extend = thresholds[i]
                if q is not None:
                    trees[i].q[parent] = q[row]
                    keep = -1.0
                seen = self.states[sequences[i]].lookup.after(trees[i].path(parent)) if mixed and q is None else []
                above = trees[i].score[parent] if parent >= 0 else 1.0
                for chance, token, where in policy.calibration.rank(ids[row], confidence[row], wide, seen):
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
        """Keep the KV of accepted nodes."""
        known = [(state, path) for s, path in zip(sequences, paths, strict=True) if (state := self.states.get(s))]
        self.runner.move([move for state, path in known for move in state.accept(path)])

    def release(self, sequence) -> None:
        state = self.states.pop(sequence, None)
        if state:
            self.runner.pages.drop(state.slot)
            self.free.append(state.slot)

    def pause(self) -> None:
        """Others may take the pages; the next proposal takes what is left of them."""
        self.runner.pages.drop_all()

    # ---- passes ----

    def _state(self, sequence) -> DraftState:
        """The state of a sequence, brought up to its newest token, whose row is always computed."""
        state = self.states.get(sequence)
        if state is None:
            features = self.features.of(sequence, self.layers) if self.layers else None
            state = DraftState(self.runner, self.free.pop(), sequence, sequence.tokens, features)
            self.states[sequence] = state
        state.confirm(sequence.num_tokens)
        state.cached = min(state.cached, sequence.num_tokens - 1)
        return state

    def _catch_up(self, states: list[DraftState]):
        """Compute the tokens that are new to the draft. Returns logits and features of each sequence's newest."""
        for _ in prefill(states, self.chunk):
            pass
        counts = [state.fresh for state in states]
        rows = [state.rows(Tree(), [], n) for state, n in zip(states, counts, strict=True)]
        hidden = [state.hidden(n) for state, n in zip(states, counts, strict=True)]
        logits, features = self.runner.forward(rows, torch.cat(hidden) if self.layers else None)
        for state, n in zip(states, counts, strict=True):
            state.computed([], n)
        newest = [end - 1 for end in accumulate(counts)]
        return logits, self.runner.placement.take(features, newest) if self.layers else features

    def _extend(self, sequences, trees, grown, features):
        """Compute new nodes [(sequence, node, row of its parent in the pass before)]."""
        nodes = {}
        for i, node, _ in grown:
            nodes.setdefault(i, []).append(node)
        rows = [self.states[sequences[i]].rows(trees[i], own) for i, own in nodes.items()]
        hidden = self.runner.placement.take(features, [row for *_, row in grown]) if self.layers else None
        out = self.runner.forward(rows, hidden)
        for i, own in nodes.items():
            self.states[sequences[i]].computed(own, 0)
        return out
