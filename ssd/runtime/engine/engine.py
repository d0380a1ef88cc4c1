"""The loop: plan, propose, forward, verify, observe, update. It knows tokens and pages; LLM knows prompts and text."""

import logging
from time import perf_counter

import torch

from ssd import kernels
from ssd.kernels import Verified
from ssd.model.kv_cache import BlockAllocator

from ..devices.free_memory import ran_out
from ..devices.placement import CPU, Placement
from ..sampling.logits_processors import process_logits, prune_by_grammar
from ..sampling.logprobs import logprobs_of
from .batch_buffers import BatchBuffers
from .features import Features
from .metrics import Metrics
from .scheduler import Plan, Scheduler
from .sequence import Sequence
from .speculator import NoSpeculation, Part, Proposal, Round, Speculator, Stages
from .tree import Tree
from .verify import verification

PLAIN = NoSpeculation()
log = logging.getLogger(__name__)


class Engine:
    """Serves sequences on one model, in the calling thread.

    model: forward(Batch, KVCache) -> float32 [n, vocabulary] and new_kv_cache(pages, page_size), and forward_features
    where a speculator reads features; sample: the operator of that name; eos_ids end a sequence. speculator: proposes
    trees of at most `nodes` tokens; rule: how the pass verifies them, "plain" (there are none), "coupled" or
    "rejection". A pass changes nothing before its tokens are known, so one that raises can be repeated, or its requests
    cancelled.
    """

    def __init__(
        self, model, sample, eos_ids, *, max_batch: int, max_model_len: int, kv_tokens: int, prefill_chunk: int,
        page_size: int = 16, speculator: Speculator = PLAIN, rule: str = "plain", nodes: int = 0,
        prefix_caching: bool = True, placement: Placement = CPU,
    ):  # fmt: skip
        spare = -(-nodes // page_size)  # pages of a sequence for what it speculates
        pages = -(-kv_tokens // page_size) + max_batch * spare
        self.model, self.eos_ids, self.placement = model, frozenset(eos_ids), placement
        self.max_model_len = max_model_len
        self.speculator, self.rule, self.verify = speculator, rule, verification(rule, sample)
        with placement.stream():
            self.kv = model.new_kv_cache(pages, page_size)
        self.allocator = BlockAllocator(pages)
        self.scheduler = Scheduler(self.allocator, page_size, max_batch, prefill_chunk, nodes, prefix_caching)
        self.features = Features(self.speculator.layers, pages * page_size)
        self.speculator.attach(self.features)
        rows = max_batch * (1 + nodes) + prefill_chunk
        self._buffers = BatchBuffers(max_batch, rows, -(-max_model_len // page_size) + spare, page_size, nodes)
        self.metrics, self.trace = Metrics(), None

    def add(self, sequence: Sequence) -> None:
        self.scheduler.add(sequence)

    def cancel(self, sequence: Sequence) -> None:
        """Forget a request, finished or not: it holds no page afterwards."""
        self.scheduler.remove(sequence)
        self.speculator.release(sequence)

    def step(self) -> list[Sequence]:
        """Run one pass. Returns the sequences that got a token or failed, those that it finished included.

        A ValueError about one sequence ends that one alone: the others are computed again, each in a pass of its own.
        """
        begin = perf_counter()
        plan = self._plan()
        if not plan:
            return []
        with torch.inference_mode(), self.placement.stream():
            proposal = self._propose(plan)
            rounds, got = self._compute(plan, proposal)
            for round in rounds:
                got += self._finish(round, begin)
                begin = perf_counter()
        return got

    def run_alone(self, plan: Plan, trees: list[Tree]) -> None:
        """Run a pass that no request asked for, and forget what it gave."""
        batch, sampling, checks = self._buffers.fill(plan, trees)
        logits, _ = self._forward(batch)
        if self.rule != "rejection":  # which is the host's
            self.verify(plan, trees, logits, checks, sampling, self.placement)

    def _propose(self, plan: Plan) -> Proposal:
        """What the speculator proposes. Where it has no memory that costs time, never a request."""
        try:
            return self.speculator.propose(plan)
        except (MemoryError, RuntimeError) as e:
            if not ran_out(e):
                raise
            log.info("no memory to speculate (%s): a pass goes without", e)
            return Proposal([None] * len(plan), 0.0)

    def _compute(self, plan: Plan, proposal: Proposal) -> tuple[list[Round], list[Sequence]]:
        """Forward and verify, in one round if nothing is wrong. Returns the rounds, and the sequences that failed."""
        try:
            return [self._round(plan, proposal)], []
        except ValueError as e:
            if len(plan) == 1:
                (work,) = plan
                work.sequence.fail(str(e))
                self.cancel(work.sequence)
                return [], [work.sequence]
        alone = [
            self._compute(Plan([work]), Proposal([tree], 0.0)) for work, tree in zip(plan, proposal.trees, strict=True)
        ]
        return [round for rounds, _ in alone for round in rounds], [s for _, failed in alone for s in failed]

    def _round(self, plan: Plan, proposal: Proposal) -> Round:
        """What the target makes of a proposal. Changes nothing that another call would not change again."""
        began = perf_counter()
        prune_by_grammar(plan, proposal.trees)
        batch, sampling, checks = self._buffers.fill(plan, proposal.trees)
        filled = perf_counter()
        logits, features = self._forward(batch)
        forwarded = perf_counter()
        offsets = batch.row_offsets.tolist()
        parts = [Part(*work, *rest) for work, *rest in zip(plan, proposal.trees, offsets, strict=False)]
        verified = self._verify(plan, proposal.trees, parts, logits, sampling, checks)
        stages = Stages(began, filled, forwarded, perf_counter())
        return Round(plan, parts, verified, features, stages, proposal.seconds)

    def _finish(self, round: Round, begin: float) -> list[Sequence]:
        """Let the speculator observe a round, and give its sequences their tokens. begin: when the pass began."""
        if self.features.layers:
            self.features.keep(round)
        self.speculator.observe(round)
        self._compact(round)
        got, tokens = self._update(round)
        end, stages = perf_counter(), round.stages
        if self.trace:
            name = "decode pass" if round.plan.decoding else "prefill pass"
            self.trace.span("verify", name, begin, end, sequences=len(round), tokens=tokens)
            self.trace.span("verify", "propose", begin, stages.began)
            self.trace.span("verify", "forward", stages.filled, stages.forwarded)
            self.trace.span("verify", "verify", stages.forwarded, stages.verified)
            self.trace.span("verify", "update", stages.verified, end)
        self.metrics.add(round, tokens, end - begin, speculative=self.rule != "plain")
        return got

    def _plan(self) -> Plan:
        plan = self.scheduler.plan()
        self.metrics.preemptions += len(self.scheduler.preempted)
        self.metrics.cached_prompt_tokens += self.scheduler.reused
        for sequence in self.scheduler.preempted:
            self.speculator.release(sequence)
            if self.trace:
                self.trace.instant("verify", "preemption", tokens=sequence.num_tokens)
        return plan

    def _forward(self, batch):
        batch = self.placement.batch(batch)
        if self.features.layers:
            logits, features = self.model.forward_features(batch, self.kv, self.features.layers)
            return logits, *self.placement.get(features)
        return self.model.forward(batch, self.kv), None

    def _verify(self, plan, trees, parts: list[Part], logits, sampling, checks) -> Verified | None:
        """Verify the trees of the sequences that sample, None where none does, and tell their parts."""
        sampled = [part for part, work in zip(parts, plan, strict=True) if work.samples]
        if not sampled:
            return None
        raw = process_logits(plan, trees, logits, checks.row_offsets)
        verified = self.verify(plan, trees, logits, checks, sampling, self.placement)
        self._read(sampled, verified, raw, checks.row_offsets.tolist())
        return verified

    def _read(self, sampled: list[Part], verified: Verified, raw: torch.Tensor, first_logits: list[int]) -> None:
        """Give each part its accepted nodes, its tokens and, where asked for, their log-probabilities."""
        paths, emitted = verified.path.tolist(), verified.emitted.tolist()
        for row, (part, accepted) in enumerate(zip(sampled, verified.accepted.tolist(), strict=True)):
            part.row, part.path, part.emitted = row, paths[row][:accepted], emitted[row][: accepted + 1]
            if min(part.emitted) < 0:  # what kernels of a device draw where a row holds no number
                at = part.sequence.num_tokens + part.emitted.index(min(part.emitted))
                raise ValueError(f"logits: got no finite number for the token at position {at} of a request")
            params, first = part.sequence.params, first_logits[row]
            if params.logprobs:
                rows = [first, *(first + 1 + node for node in part.path)]
                part.logprobs = logprobs_of(self.placement.pick(raw, rows), part.emitted, params.top_logprobs)

    def _compact(self, round: Round) -> None:
        """Move the KV of accepted nodes to the indices right behind the root."""
        sources, targets = [], []
        for part in round:
            first = part.sequence.num_cached + part.count
            for k, node in enumerate(part.path or ()):
                if node != k:
                    sources.append(part.sequence.slots[first + node])
                    targets.append(part.sequence.slots[first + k])
        if sources:
            kernels.kv_copy(self.kv.k, self.kv.v, *self.placement.put(torch.tensor(sources), torch.tensor(targets)))

    def _update(self, round: Round) -> tuple[list[Sequence], int]:
        got, tokens = [], 0
        for part in round:
            sequence, cached = part.sequence, part.sequence.num_cached
            accepted = len(part.path or ())
            sequence.num_cached += part.count + accepted
            for k, token in enumerate(part.emitted):
                origin = part.tree.origin if k < accepted else "bonus"
                sequence.append(token, part.logprobs[k] if part.logprobs else None, self.eos_ids, origin)
                tokens += 1
                if sequence.finish_reason:
                    break
            self.scheduler.keep(sequence, cached)
            if sequence.finish_reason:
                self.cancel(sequence)
            if part.emitted:
                got.append(sequence)
        return got, tokens
