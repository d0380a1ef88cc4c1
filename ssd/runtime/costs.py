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

from .candidates import Coupled
from .device import place_of
from .sampling_params import SamplingParams
from .threads import bind

log = logging.getLogger(__name__)
ROWS, PREFIX, REPEATS = (1, 5, 12), 128, 6
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


class Passes:
    """Passes of one model, to be timed."""

    def __init__(self, model):
        self.model, self.kv = model, model.new_kv_cache(-(-(PREFIX + max(ROWS)) // 16))
        self.place = place_of(model)
        self.kv.k.zero_(), self.kv.v.zero_()
        features = bool(getattr(model, "feature_layers", ()))
        self.asker = SimpleNamespace(params=SamplingParams(temperature=1.0), seed=0) if hasattr(model, "ids") else None
        self.batches = {n: Batch.chain([0] * n, PREFIX, self.kv.page_size) for n in ROWS}
        width = model.config.hidden_size
        self.hidden = {n: torch.ones(n, width) if features else None for n in ROWS}

    def run(self, rows: int) -> float:
        begin = perf_counter()
        with torch.inference_mode(), self.place.stream():
            batch, (hidden,) = self.place.batch(self.batches[rows]), self.place.put(self.hidden[rows])
            logits, _ = self.model.forward_features(batch, self.kv, (), hidden)
            if self.asker:  # a draft's choice is part of its step
                Coupled().best(logits, [self.asker] * rows, [PREFIX] * rows, 1, self.model.ids, self.place)
            self.place.get(logits[:1, :1])
        return perf_counter() - begin

    def times(self, repeats: int, of, between=lambda: None) -> dict[int, float]:
        """between: called before each pass of several rows, as a draft is run before a verification."""

        def once(n: int) -> float:
            if n > 1:
                between()
            return self.run(n)

        return {n: of([once(n) for _ in range(repeats)]) for n in ROWS}


def measure(target, draft, together, verify, drafting, repeats: int = REPEATS, of=min) -> Costs:
    """Times both models on the cores of each arrangement (as bind takes them; None for a model on a GPU); the calling
    thread is bound to `together` afterwards. of: what stands for repeated passes, by default the least, since what else
    runs on the machine only adds."""
    target, draft = Passes(target), Passes(draft)
    bind(together)
    first = target.times(repeats, of, lambda: draft.run(1)), draft.times(repeats, of)
    other, stop = {}, threading.Event()

    def work():
        bind(drafting)
        other.update(draft.times(repeats, of))
        while not stop.is_set():
            draft.run(max(ROWS))

    thread = threading.Thread(target=work)
    thread.start()
    bind(verify)
    try:
        apart = target.times(repeats, of)
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
