"""This project."""

import time

from ..roofline import bind
from . import timeline


class Peer:
    def __init__(self, cores, target, precision, mode, **options):
        from ssd import LLM, SamplingParams

        bind(cores)
        threads = cores
        if mode == "ssd":  # the last core is the draft's
            threads, options["draft_threads"] = cores[:-1] or cores, cores[-1:]
        elif mode == "auto" and len(cores) > 1:  # it shares them out itself
            threads = None
        self.llm = LLM(target, dtype=precision, mode=mode, threads=threads, **options)
        self.params = SamplingParams

    def generate(self, ids: list[int], max_tokens: int) -> dict:
        params = self.params(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        start = time.perf_counter()
        arrivals = [(time.perf_counter(), list(chunk.token_ids)) for chunk in self.llm.stream(ids, params)]
        return timeline(start, [a for a in arrivals if a[1]], max_tokens)
