"""What a pass of target and draft costs on the cores at hand, measured once and kept in the cache folder."""

import json
import logging
import threading
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace

import torch

from ssd.model.batch import Batch

from ..cache_files import cache_file, machine, pair_key, write
from ..devices.placement import placement_of
from ..devices.threads import bind
from ..drafting.draft_runner import DraftRows, DraftRunner
from ..drafting.draft_sampling import CoupledSampler
from ..sampling.sampling_params import SamplingParams
from ..sync.policy import Policy
from .cost_model import Costs

log = logging.getLogger(__name__)
ROWS, PREFIX, REPEATS = (1, 5, 12), 128, 6
STEPS = 3  # of a draft in a round, about
CHANGED = 1.4  # times as long or as short: then all is measured again


def prefix_of(model) -> int:
    """Tokens before the timed rows: PREFIX, or as many as the model's context has room for."""
    return max(0, min(PREFIX, len(model.cos) - max(ROWS)))


class TargetTimer:
    """Times passes of a target over a chain of rows behind a prefix."""

    def __init__(self, model):
        prefix = prefix_of(model)
        self.model, self.placement = model, placement_of(model)
        with self.placement.stream():
            self.kv = model.new_kv_cache(-(-(prefix + max(ROWS)) // 16))
            self.kv.k.zero_(), self.kv.v.zero_()
        self.batches = {n: Batch.chain([0] * n, prefix, self.kv.page_size) for n in ROWS}

    def _pass(self, rows: int) -> None:
        logits = self.model.forward(self.placement.batch(self.batches[rows]), self.kv)
        self.placement.get(logits[:1, :1])

    def run(self, rows: int) -> float:
        """Seconds of a pass."""
        return seconds_of(lambda: self._pass(rows), self.placement)


class DraftTimer:
    """Times steps of a draft: a pass with what is made ready for it, and the choice of tokens."""

    def __init__(self, draft):
        self.prefix, width = prefix_of(draft), draft.config.hidden_size
        size = {"max_len": self.prefix + max(ROWS), "nodes": max(ROWS)}
        self.runner = DraftRunner(draft, max_batch=1, **size, placement=placement_of(draft))
        self.runner.pages.reserve(0, sum(size.values()))
        with self.runner.placement.stream():
            self.runner.kv.k.zero_(), self.runner.kv.v.zero_()
        self.hidden = {n: torch.ones(n, width) if draft.feature_layers else None for n in ROWS}
        self.asker = SimpleNamespace(params=SamplingParams(temperature=1.0), seed=0)

    def _step(self, rows: int) -> None:
        span = range(self.prefix, self.prefix + rows)
        chain = DraftRows(0, self.prefix, [0] * rows, span, span, None, range(rows))
        logits, _ = self.runner.forward([chain], *self.runner.placement.put(self.hidden[rows]))
        self.runner.candidates(CoupledSampler(), logits, [self.asker] * rows, [self.prefix] * rows, 1)

    def run(self, rows: int) -> float:
        """Seconds of a step."""
        return seconds_of(lambda: self._step(rows), self.runner.placement)


def seconds_of(work, placement) -> float:
    begin = perf_counter()
    with torch.inference_mode(), placement.stream():
        work()
    return perf_counter() - begin


def times(run, repeats: int, of, before=lambda rows: None, each: int = 1) -> dict[int, float]:
    """Seconds of run(rows) for each of ROWS.

    before(rows) is called, then follow `each` runs, whose mean counts. This is repeated, and `of` (min, say) of the
    means is taken.
    """

    def once(rows: int) -> float:
        before(rows)
        return sum(run(rows) for _ in range(each)) / each

    return {n: of([once(n) for _ in range(repeats)]) for n in ROWS}


def measure(target, draft, together, verify, drafting, repeats: int = REPEATS, of=min) -> Costs:
    """Time both models on the cores of each arrangement (as bind takes them; None for a model on a GPU).

    Where they take turns, each finds its weights out of the caches, as in decoding: a verification follows a step, a
    few steps follow a verification, and plain passes follow one another. of: makes one number of repeated passes; the
    least by default, since whatever else runs only adds. The calling thread is bound to `together` afterwards.
    """
    target, draft = TargetTimer(target), DraftTimer(draft)
    bind(together)
    for _ in range(Policy.SETTLE):
        target.run(ROWS[0])
    verifying = times(target.run, repeats, of, lambda rows: rows > 1 and draft.run(1))
    first = verifying, times(draft.run, repeats, of, lambda rows: target.run(ROWS[1]), STEPS)
    other, stop = {}, threading.Event()

    def work():
        bind(drafting)
        other.update(times(draft.run, repeats, of))
        while not stop.is_set():
            draft.run(max(ROWS))

    thread = threading.Thread(target=work)
    thread.start()
    bind(verify)
    try:
        apart = times(target.run, repeats, of)
    finally:
        stop.set()
        thread.join()
        bind(together)
    return Costs(*first, apart, other)


def still_holds(costs: Costs, target, together) -> bool:
    """Whether a pass still takes about as long. What was measured in a busy hour would mislead every later run."""
    bind(together)
    passes = TargetTimer(target)
    ratio = min(passes.run(1) for _ in range(4)) / costs.target_together[1]
    return 1 / CHANGED < ratio < CHANGED


def costs_of(target, draft, together, verify, drafting, folder: Path | None) -> Costs:
    """The costs that the folder keeps, or else measured and written there.

    A file that cannot be read or written costs time only.
    """
    cores = (together, verify, drafting, *(str(m.device) for m in (target, draft) if m.device.type != "cpu"))
    path = folder and cache_file(folder, "costs", machine(), cores, pair_key(target, draft), draft.dtype)
    costs = path and read_costs(path)
    if costs and still_holds(costs, target, together):
        return costs
    costs = measure(target, draft, together, verify, drafting)
    if path:
        write(path, json.dumps(asdict(costs)))
    return costs


def read_costs(path: Path) -> Costs | None:
    try:
        stored = json.loads(path.read_text())
        return Costs(**{name: {int(k): float(v) for k, v in times.items()} for name, times in stored.items()})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as e:
        log.info("%s cannot be read (%s): measuring again", path, e)
        return None
