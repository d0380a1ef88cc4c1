"""The loop: plan, propose, forward, verify, update. It knows tokens and pages; prompts and text are of llm.py."""

from time import perf_counter

import torch

from ssd import kernels
from ssd.model.kv_cache import BlockAllocator

from ..devices.placement import CPU, Placement
from ..sampling.logits_processors import process_logits, prune_by_grammar
from ..sampling.logprobs import logprobs_of
from .batch_buffers import BatchBuffers
from .features import Features
from .metrics import Metrics
from .scheduler import Scheduler, Work
from .sequence import Sequence


class Engine:
    """Serves sequences on one model, in the calling thread.

    model: forward(Batch, KVCache) -> float32 [n, vocabulary] and new_kv_cache(pages, page_size), and forward_features
    where a speculator reads features; sample: the operator of that name; eos_ids end a sequence. speculator: proposes
    trees of at most `nodes` tokens, which the pass verifies. A pass changes nothing before its tokens are known, so
    one that raises can be repeated, or its requests cancelled.
    """

    def __init__(
        self, model, sample, eos_ids, *, max_batch: int, max_model_len: int, kv_tokens: int, prefill_chunk: int,
        page_size: int = 16, speculator=None, nodes: int = 0, prefix_caching: bool = True, placement: Placement = CPU,
    ):  # fmt: skip
        spare = -(-nodes // page_size)  # pages of a sequence for what it speculates
        pages = -(-kv_tokens // page_size) + max_batch * spare
        self.model, self.sample, self.eos_ids = model, sample, frozenset(eos_ids)
        self.speculator, self.placement = speculator, placement
        self.kv = model.new_kv_cache(pages, page_size)
        self.allocator = BlockAllocator(pages)
        self.scheduler = Scheduler(self.allocator, page_size, max_batch, prefill_chunk, nodes, prefix_caching)
        self.features = Features(speculator.layers if speculator else (), pages * page_size)
        if speculator:
            speculator.attach(self.features)
        rows, pages = max_batch * (1 + nodes) + prefill_chunk, -(-max_model_len // page_size) + spare
        self._rows = BatchBuffers(max_batch, rows, pages, page_size, nodes)
        self.metrics, self.trace = Metrics(), None

    def add(self, sequence: Sequence) -> None:
        self.scheduler.add(sequence)

    def cancel(self, sequence: Sequence) -> None:
        """Forget a request, finished or not: it holds no page afterwards."""
        self.scheduler.remove(sequence)
        if self.speculator:
            self.speculator.release(sequence)

    def step(self) -> list[Sequence]:
        """One pass. Returns the sequences that got a token, those that it finished included."""
        begin = perf_counter()
        plan = self._plan()
        if not plan:
            return []
        prefill_rows = sum(work.count for work in plan if not work.sequence.decoding)
        with torch.inference_mode(), self.placement.stream():
            trees = self.speculator.propose(plan) if self.speculator else [None] * len(plan)
            prune_by_grammar(plan, trees)
            proposed = perf_counter()
            batch, sampling, verification = self._rows.fill(plan, trees)
            filled = perf_counter()
            logits, features = self._forward(batch)
            forwarded = perf_counter()
            paths, emitted, logprobs = self._verify(plan, trees, logits, sampling, verification)
            verified = perf_counter()
            if self.speculator:
                offsets = batch.row_offsets.tolist()
                if self.features.layers:
                    self.features.keep(plan, paths, offsets, features)
                self.speculator.observe(plan, trees, paths, offsets, features, verified - proposed)
            self._compact(plan, paths)
        got, tokens = self._update(plan, trees, paths, emitted, logprobs)
        end = perf_counter()
        if self.trace:
            name = "prefill" if prefill_rows else "decode"
            stages = {"propose": (begin, proposed), "forward": (filled, forwarded), "verify": (forwarded, verified)}
            self.trace.span("verify", f"{name} pass", begin, end, sequences=len(plan), tokens=tokens)
            for stage, times in (stages | {"update": (verified, end)}).items():
                self.trace.span("verify", stage, *times)
        draft = self.speculator.seconds if self.speculator else 0.0
        times = (end - begin, draft, forwarded - filled, verified - forwarded)
        verified = list(zip(trees, paths, strict=True)) if self.speculator else None
        self.metrics.add(prefill_rows, tokens, *times, verified)
        return got

    def _plan(self) -> list[Work]:
        plan = self.scheduler.plan()
        self.metrics.preemptions += len(self.scheduler.preempted)
        self.metrics.cached_prompt_tokens += self.scheduler.reused
        for sequence in self.scheduler.preempted:
            if self.speculator:
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

    def _verify(self, plan, trees, logits, sampling, verification):
        """For each sequence of the plan its accepted nodes, emitted tokens and their Logprobs, None where not asked
        for; None, (), None where nothing was sampled."""
        paths, emitted, logprobs = [None] * len(plan), [()] * len(plan), [None] * len(plan)
        places = [i for i, work in enumerate(plan) if work.samples]
        if not places:
            return paths, emitted, logprobs
        raw = process_logits(plan, trees, logits, verification.row_offsets)
        if not self.speculator:
            sampled = self.sample(logits, *self.placement.put(*sampling[:-1]), sampling[-1])
            rows = ([()] * len(places), [[t] for t in self.placement.get(*sampled)[0].tolist()])
        else:
            path, accepted, out, _ = self.speculator.verify(plan, trees, logits, verification, sampling, self.placement)
            counts = accepted.tolist()
            rows = tuple(
                [row[: n + extra] for row, n in zip(t.tolist(), counts, strict=True)]
                for t, extra in ((path, 0), (out, 1))
            )
        for i, path, new, first in zip(places, *rows, verification.row_offsets.tolist(), strict=False):
            paths[i], emitted[i], params = path, new, plan[i].sequence.params
            if params.logprobs:
                at = [first, *(first + 1 + node for node in path)]
                logprobs[i] = logprobs_of(self.placement.pick(raw, at), new, params.top_logprobs)
        return paths, emitted, logprobs

    def _compact(self, plan, paths) -> None:
        """Move the KV of accepted nodes to the places right behind the root."""
        sources, targets = [], []
        for (sequence, count), path in zip(plan, paths, strict=True):
            for k, node in enumerate(path or ()):
                if node != k:
                    first = sequence.num_cached + count
                    sources.append(sequence.slots[first + node])
                    targets.append(sequence.slots[first + k])
        if sources:
            kernels.kv_copy(self.kv.k, self.kv.v, *self.placement.put(torch.tensor(sources), torch.tensor(targets)))

    def _update(self, plan: list[Work], trees, paths, emitted, logprobs) -> tuple[list[Sequence], int]:
        got, tokens = [], 0
        for (sequence, count), tree, path, new, probs in zip(plan, trees, paths, emitted, logprobs, strict=True):
            cached = sequence.num_cached
            sequence.num_cached += count + len(path or ())
            for k, token in enumerate(new):
                origin = tree.origin if tree and k < len(path) else "bonus"
                sequence.append(token, probs[k] if probs else None, self.eos_ids, origin)
                tokens += 1
                if sequence.finish_reason:
                    break
            self.scheduler.keep(sequence, cached)
            if sequence.finish_reason:
                self.cancel(sequence)
            if new:
                got.append(sequence)
        return got, tokens
