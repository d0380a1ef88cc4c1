"""A peer for tests of the benchmarks, which repeats the prompt's last token at a known pace."""

import os
import time

from bench.peers import timeline


class Peer:
    def __init__(self, cores, target, precision, mode, refuse=None):
        if refuse:
            raise FileNotFoundError(refuse)
        print("noise that must not mix with the answers")
        self.step = {"fast": 0.001, "slow": 0.004}[target] if precision == "bf16" else 0.002

    def generate(self, ids, max_tokens):
        start, arrivals = time.perf_counter(), []
        for _ in range(max_tokens):
            time.sleep(self.step)
            arrivals.append((time.perf_counter(), [ids[-1]]))
        return timeline(start, arrivals, max_tokens)

    def costs(self):
        return {"target_together": {"1": self.step}}

    def cores(self):
        return sorted(os.sched_getaffinity(0)), os.environ["OMP_PLACES"]

    def fail(self):
        raise ValueError("x: got 1, wanted 2")

    def leave(self):
        os._exit(3)
