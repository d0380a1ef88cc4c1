"""Times of the speculation cache's steps: `python -m bench.spec_cache`."""

import statistics
import threading
import time

import torch

from ssd.runtime.lanes.speculation_cache import SpeculationCache, key

NODES = 5


class Rounds:
    """Rounds of B slots that always hit: the draft lane publishes, the verify lane matches and posts."""

    def __init__(self, batch: int, branches: int):
        self.cache = SpeculationCache(batch, branches, NODES, vocab=1 << 16, log=1 << 18)
        self.slots = torch.arange(batch)
        self.seen = torch.ones(batch, dtype=torch.int64)
        for slot in range(batch):
            self.cache.assign(slot, slot, torch.tensor([1]))
        nodes = torch.arange(branches) % (NODES + 1) - 1
        self.keys = key(nodes, torch.arange(branches)).repeat(batch, 1)
        self.tokens = torch.randint(1 << 16, (batch, branches, NODES))
        n = int(nodes[-1]) + 1  # the outcome is that of the last branch, so the search compares all keys
        self.accepted = torch.full((batch,), n, dtype=torch.int32)
        self.path = torch.arange(NODES, dtype=torch.int8).repeat(batch, 1)
        self.emitted = torch.ones(batch, NODES + 1, dtype=torch.int64)
        self.emitted[:, n] = branches - 1
        self.epochs = torch.full((batch,), 2)

    def publish(self):
        return self.cache.publish(self.slots, self.epochs, self.keys, self.tokens)

    def match_swap(self):
        self.matched = self.cache.match_swap(self.slots, self.path, self.accepted, self.emitted)

    def post(self):
        self.cache.post(self.slots, self.path, self.accepted, self.emitted, self.matched)

    def read(self):
        self.outcomes = self.cache.wait_outcomes(self.slots, self.seen, 0)

    def right(self) -> bool:
        full = self.matched.taken.eq(NODES).all() and torch.equal(self.matched.tokens.long(), self.tokens[:, -1])
        epochs = self.epochs.tolist()
        return bool(full) and all(o.epoch == e and o.hit for o, e in zip(self.outcomes, epochs, strict=True))


def _steps(batch: int, branches: int, rounds: int) -> list[dict]:
    r = Rounds(batch, branches)
    steps = ("publish", "match_swap", "post", "read")
    times = {name: [] for name in steps}
    right = True
    for _ in range(rounds):
        for name in steps:
            step = getattr(r, name)
            start = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - start)
        right &= r.right()
        r.epochs += 1
        r.seen += 1
    times["match_swap + post"] = [a + b for a, b in zip(times["match_swap"], times["post"], strict=True)]
    shape = f"batch {batch}, {branches} branches of {NODES}"
    return [_row(name, shape, values, right) for name, values in times.items()]


def _handover(rounds: int) -> dict:
    """The row of a round trip between two threads: one posts, the other reads and publishes, the first sees it."""
    r = Rounds(1, 24)
    right = True

    def draft():
        while r.seen < rounds:
            if r.cache.wait_outcomes(r.slots, r.seen, 100_000)[0]:
                r.seen.add_(1)
                r.cache.publish(r.slots, r.seen + 1, r.keys, r.tokens)

    r.publish()
    lane = threading.Thread(target=draft)
    lane.start()
    times = []
    for _ in range(rounds - 1):
        r.match_swap()
        start = time.perf_counter()
        r.post()
        right &= r.cache.wait_ready(r.slots, 1_000_000) == 1 and bool(r.matched.branch >= 0)
        times.append(time.perf_counter() - start)
    lane.join()
    return _row("post to ready, two threads", f"batch 1, 24 branches of {NODES}", times, right)


def _row(op: str, shape: str, seconds: list[float], check: bool) -> dict:
    microseconds = statistics.median(seconds) * 1e6
    return {"op": f"spec_cache {op}", "backend": "cpu", "shape": shape, "microseconds": microseconds, "check": check}


def bench_rows(rounds: int = 2000) -> list[dict]:
    """Rows with op, backend, shape, microseconds (median) and check. Calls come from Python; every round hits."""
    return [*_steps(1, 24, rounds), *_steps(8, 24, rounds), _handover(rounds)]


if __name__ == "__main__":
    for row in bench_rows():
        print(f"{row['op']:40} {row['shape']:32} {row['microseconds']:8.1f} us  {row['check']}")
