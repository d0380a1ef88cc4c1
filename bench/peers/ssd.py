"""This project's own engine."""

import time
from dataclasses import asdict
from itertools import pairwise
from statistics import median

from ..process import bind
from . import timeline


class Peer:
    """This engine with one target. mode: "sd:3" is sd with k 3; options: those of LLM."""

    def __init__(self, cores, target, precision, mode, **options):
        from ssd import LLM, SamplingParams
        from ssd.shared_options import used

        bind(cores)
        mode, _, k = mode.partition(":")
        options |= {"k": int(k)} if k else {}
        self.cores = cores
        threads = cores
        if mode == "ssd":  # the draft has the last core
            threads = cores[:-1] or cores
            options["draft_threads"] = cores[-1:]
        elif mode == "auto" and len(cores) > 1:  # auto divides the cores itself
            threads = None
        options["prefix_caching"] = False  # every answer is timed from the start of its prompt
        self.llm = LLM(target, dtype=precision, threads=threads, **used({"mode": mode, **options}))
        self.params = SamplingParams

    def generate(self, ids: list[int], max_tokens: int, temperature: float = 0.0, seed: int = 0) -> dict:
        """The dictionary of `timeline` with counts, gaps (seconds from one piece of the answer to the next; a piece is
        what a round emits), and cpu_seconds (of all threads, from the first piece to the last)."""
        from ssd.runtime.engine.metrics import Metrics

        params = self.params(temperature, seed=seed, max_tokens=max_tokens, ignore_eos=True)
        metrics = self.llm.engine.metrics = Metrics()
        before = self.draft_counts()
        start = time.perf_counter()
        pieces = [(time.perf_counter(), list(c.token_ids), time.process_time()) for c in self.llm.stream(ids, params)]
        after = self.draft_counts()
        counts = asdict(metrics) | {"shapes": {f"{n} {accepted}": c for (n, accepted), c in metrics.shapes.items()}}
        counts |= {name: value - before.get(name, 0) for name, value in after.items()}
        pieces = [piece for piece in pieces if piece[1]]
        gaps = [b[0] - a[0] for a, b in pairwise(pieces)]
        more = {"counts": counts, "gaps": gaps, "cpu_seconds": pieces[-1][2] - pieces[0][2]}
        return timeline(start, [piece[:2] for piece in pieces], max_tokens) | more

    def draft_counts(self) -> dict:
        """Passes of the draft so far and their rows; with a lane of its own also hits, misses, retries that the target
        asked for, and the target's wait for them."""
        speculator = self.llm.engine.speculator
        speculator = getattr(speculator, "current", speculator)  # mode auto and two drafts have several
        lane = getattr(speculator, "lane", None)
        runner = speculator.runner
        out = {"draft_passes": runner.passes, "draft_rows": runner.rows} if runner else {}
        if lane:
            counts = speculator.counts
            out |= {"hits": counts.hits, "misses": counts.misses, "retries": counts.recoveries["local_retry"].count}
            out |= {"wait_seconds": counts.wait_seconds, "lane_seconds": lane.seconds}
        return out

    def costs(self) -> dict:
        """Median seconds of a pass by its rows, a dictionary of ssd.runtime.switching.cost_model.Costs: on all cores,
        and with the last core for the draft. For mode "sd" only."""
        from ssd.runtime.switching.measure import measure

        draft = self.llm.engine.speculator.proposer.draft
        cores = self.cores
        return asdict(measure(self.llm.engine.model, draft, cores, cores[:-1] or cores, cores[-1:], 10, median))
