"""What a pass of target and draft costs on the cores at hand, measured once, and the speed that follows from it."""

import hashlib
import json
import logging
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace

import torch

from ssd.model.batch import Batch

from ..devices.placement import place_of
from ..devices.threads import bind
from ..drafting.draft_runner import DraftRunner, Rows
from ..drafting.draft_sampling import Coupled
from ..sampling.sampling_params import SamplingParams
from ..sync.policy import Policy

log = logging.getLogger(__name__)
ROWS, PREFIX, REPEATS = (1, 5, 12), 128, 6
STEPS = 3  # of a draft in a round, about
CHANGED = 1.4  # times as long or as short: then all is measured again
LONGEST = 8  # tokens of a branch that the formulas try


@dataclass(frozen=True)
class Costs:
    """Seconds of a pass by its rows. together: target and draft on all cores, one after the other; apart: the target
    on its cores while the draft works on its own, and the draft there."""

    target_together: dict[int, float]
    draft_together: dict[int, float]
    target_apart: dict[int, float]
    draft_apart: dict[int, float]

    def sd(self, acceptance: float, sequences: int = 1) -> float:
        """Tokens a second of a sequence by synchronous speculation, at the best length of a chain, none included."""
        t, d = self.target_together, self.draft_together
        return max(
            expected(acceptance, k) / (at(t, sequences * (k + 1)) + k * at(d, sequences)) for k in range(LONGEST + 1)
        )

    def ssd(self, acceptance: float, hit_rate: float, depth: int, branches: int, sequences: int = 1) -> float:
        """The same with two lanes (arXiv 2603.03251, theorem 7) at the best length up to depth: a miss is drafted again
        while the target waits."""
        t, d = self.target_apart, self.draft_apart

        def speed(k: int) -> float:
            draft = (k + 1) * at(d, branches)
            retry = (1 - hit_rate) * k * at(d, sequences)
            return expected(acceptance, k) / (max(at(t, sequences * (k + 1)), draft) + retry)

        return max(map(speed, range(1, depth + 1)))


def expected(acceptance: float, k: int) -> float:
    """Tokens of a round with a chain of k, each accepted with that chance after those before it."""
    return sum(acceptance**i for i in range(k + 1))


def at(times: dict[int, float], rows: int) -> float:
    """Linear between the rows that were measured, and beyond them."""
    known = sorted(times)
    i = next((i for i in range(1, len(known) - 1) if rows <= known[i]), len(known) - 1)
    a, b = known[i - 1], known[i]
    return max(times[a] + (times[b] - times[a]) * (rows - a) / (b - a), 1e-9)


def prefix_of(model) -> int:
    """PREFIX, or what the model's context has room for."""
    return max(0, min(PREFIX, len(model.cos) - max(ROWS)))


class Passes:
    """Passes of a target over a chain of rows behind a prefix, to be timed."""

    def __init__(self, model):
        self.model, self.place, prefix = model, place_of(model), prefix_of(model)
        self.kv = model.new_kv_cache(-(-(prefix + max(ROWS)) // 16))
        self.kv.k.zero_(), self.kv.v.zero_()
        self.batches = {n: Batch.chain([0] * n, prefix, self.kv.page_size) for n in ROWS}

    def once(self, rows: int) -> None:
        logits = self.model.forward(self.place.batch(self.batches[rows]), self.kv)
        self.place.get(logits[:1, :1])

    def run(self, rows: int) -> float:
        """Seconds."""
        begin = perf_counter()
        with torch.inference_mode(), self.place.stream():
            self.once(rows)
        return perf_counter() - begin


class Steps(Passes):
    """Steps of a draft: a pass with what is made ready for it, and the choice of tokens."""

    def __init__(self, draft):
        self.prefix, width = prefix_of(draft), draft.config.hidden_size
        size = {"max_len": self.prefix + max(ROWS), "nodes": max(ROWS)}
        self.runner = DraftRunner(draft, max_batch=1, **size, place=place_of(draft))
        self.place = self.runner.place
        self.runner.kv.k.zero_(), self.runner.kv.v.zero_()
        self.hidden = {n: torch.ones(n, width) if draft.feature_layers else None for n in ROWS}
        self.asker = SimpleNamespace(params=SamplingParams(temperature=1.0), seed=0)

    def once(self, rows: int) -> None:
        span = range(self.prefix, self.prefix + rows)
        chain = Rows(0, self.prefix, [0] * rows, span, span, None, range(rows))
        logits, _ = self.runner.forward([chain], *self.place.put(self.hidden[rows]))
        self.runner.best(Coupled(), logits, [self.asker] * rows, [self.prefix] * rows, 1)


def times(run, repeats: int, of, before=lambda rows: None, each: int = 1) -> dict[int, float]:
    """Seconds of run by rows: `of` so many times of `each` runs in a row, after what is done before."""

    def once(rows: int) -> float:
        before(rows)
        return sum(run(rows) for _ in range(each)) / each

    return {n: of([once(n) for _ in range(repeats)]) for n in ROWS}


def measure(target, draft, together, verify, drafting, repeats: int = REPEATS, of=min) -> Costs:
    """Times both models on the cores of each arrangement (as bind takes them; None for a model on a GPU); the calling
    thread is bound to `together` afterwards. Where they take turns, each finds its weights out of the caches, as when
    it decodes: a verification comes behind a step, and a few steps behind a verification; plain passes follow one
    another. of: what stands for repeated passes, by default the least, since whatever else runs only adds."""
    target, draft = Passes(target), Steps(draft)
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


def kept(folder: Path, kind: str, *what) -> Path:
    """The file of a folder that keeps what was learnt of `what`, whatever can be told by its representation."""
    return folder / f"{kind}-{hashlib.sha256(repr(what).encode()).hexdigest()[:16]}.json"


def machine() -> tuple:
    """The CPU, the instruction set in use, and GPUs."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return next((line for line in lines if line.startswith("model name")), ""), torch.ops.ssd.isa(), *gpus


def pair(target, draft) -> tuple:
    """What tells two models apart from others, as far as their speed and their likeness go."""
    return str(target.config), target.dtype, str(draft.config), draft.vocab, draft.feature_layers


def stands(costs: Costs, target, together) -> bool:
    """Whether a pass still takes about as long: what was measured in a busy hour would mislead every later run."""
    bind(together)
    passes = Passes(target)
    ratio = min(passes.run(1) for _ in range(4)) / costs.target_together[1]
    return 1 / CHANGED < ratio < CHANGED


def costs_of(target, draft, together, verify, drafting, folder: Path | None) -> Costs:
    """Read from the folder, or measured and written there; a file that cannot be read or written costs time only."""
    cores = (together, verify, drafting, *(str(m.device) for m in (target, draft) if m.device.type != "cpu"))
    path = folder and kept(folder, "costs", machine(), cores, pair(target, draft), draft.dtype)
    if path and path.is_file():
        try:
            stored = json.loads(path.read_text())
            costs = Costs(**{name: {int(k): float(v) for k, v in times.items()} for name, times in stored.items()})
            if stands(costs, target, together):
                return costs
            log.info("%s no longer holds: measuring again", path)
        except (ValueError, TypeError, AttributeError, KeyError):
            log.info("%s cannot be read: measuring again", path)
    costs = measure(target, draft, together, verify, drafting)
    if path:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(asdict(costs)))
        except OSError as e:
            log.info("%s cannot be written: %s", path, e)
    return costs
