"""SSD against SD and against its own theorem: `python -m bench.theory --data F.jsonl --json F`.

Modes, which take turns prompt by prompt: with one core for the target and one for the draft, plain decoding (ar),
speculation on the target's core (sd, with adaptive length and shape), and both lanes side by side (ssd); with both
cores for everything, ar2, sd2 and auto2.
`rows`: workload, temperature, tokens_per_second of each mode (medians over prompts), ssd_over_sd, and for ssd:
hit_rate p; hit_length and miss_length (E, tokens of a round after a hit and after a miss); verify_ms; draft_time T_p (a
round of the draft) and fallback_time T_b (the wait after a miss), both in verifications; predicted (arXiv 2603.03251,
theorem 7: [p E_hit + (1-p) E_miss] / [p max(1, T_p) + (1-p)(1 + T_b)] tokens a verification, here as tokens a second);
error (measured by predicted, less 1); wait_share (share of the time that the verify lane waits); overhead_fraction;
recovery_ms (of a local retry).
"""

import argparse
import statistics
import sys
import time
from collections import defaultdict

from ssd.cli.command import guarded, listed, whole
from ssd.shared_options import used
from ssd.simulate.formula import theorem_7

from . import results
from .machine import cores_of
from .timing import REST
from .worker import Worker
from .workloads import check_names, workloads_of

MODES = {"ar": (1, "ar"), "sd": (1, "sd"), "ssd": (2, "ssd"), "ar2": (2, "ar"), "sd2": (2, "sd"), "auto2": (2, "auto")}


class Runner:
    """One mode on some cores, of which a draft lane has the last one."""

    def __init__(self, cores, mode, target=None, draft=None, dtype="bf16", **options):
        from ssd import LLM

        from .process import bind

        bind(cores)
        if mode == "ssd":
            options |= {"threads": cores[:-1], "draft_threads": cores[-1:]}
        elif mode != "auto":
            options |= {"threads": cores}
        self.llm = LLM(
            target, dtype, max_batch=1, max_model_len=2048, **used({"mode": mode, "draft": draft, **options})
        )

    def forget(self) -> None:
        """Resets all statistics."""
        from ssd.runtime.engine.metrics import Metrics
        from ssd.runtime.lanes.lane_counts import LaneCounts

        self.llm.engine.metrics = Metrics()
        lanes = self.llm.engine.speculator
        if self.llm.speculation.mode == "ssd":
            lanes.counts = LaneCounts()
            lanes.lane.seconds = 0.0
            lanes.lane.rounds = 0

    def generate(self, ids, temperature, seed, max_tokens) -> float:
        """Decodes an answer and returns its tokens a second."""
        from ssd import SamplingParams

        m = self.llm.metrics
        tokens = m.decode_tokens
        seconds = m.decode_seconds
        self.llm.generate([ids], SamplingParams(temperature, seed=seed, max_tokens=max_tokens, ignore_eos=True))
        return (m.decode_tokens - tokens) / (m.decode_seconds - seconds)

    def stats(self) -> dict:
        return self.llm.stats()


def of_ssd(stats: dict, speed: float) -> dict:
    """The part of a row about ssd. stats: of a run; speed: its tokens a second over all prompts."""
    lengths = stats["accepted_length_by_origin"]
    p = stats["hit_rate"]
    rounds = stats["rounds_by_origin"]
    missed = [(rounds[name], lengths[name]) for name in ("fallback", "none") if name in lengths]
    miss = sum(n * length for n, length in missed) / sum(n for n, _ in missed) if missed else 1.0
    whole = 1e3 * stats["decode_seconds"] / stats["decode_passes"]
    hit = lengths.get("hit", miss)
    verify = whole * (1 - stats["overhead_fraction"]) - stats["wait_ms"]
    misses = (1 - p) * stats["rounds"]
    t_p = stats["draft_ms"] / verify
    t_b = stats["wait_ms"] * stats["rounds"] / max(misses, 1) / verify
    predicted = 1e3 / verify * theorem_7(p, hit, miss, t_p, t_b)
    retry = stats["recoveries"]["local_retry"]["mean_ms"]
    return {
        "hit_rate": p, "hit_length": hit, "miss_length": miss, "verify_ms": verify, "draft_time": t_p,
        "fallback_time": t_b, "predicted": predicted, "error": speed / predicted - 1,
        "wait_share": stats["wait_ms"] / whole,
        "overhead_fraction": stats["overhead_fraction"], "recovery_ms": retry,
    }  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", help="folder or id of the model (the default target)")
    parser.add_argument("--draft", help="folder or id of the draft (the target's own)")
    parser.add_argument("--dtype", default="bf16", help="precision of the target (%(default)s)")
    parser.add_argument("--modes", default=",".join(MODES), help="modes; those with a 2 have both cores (%(default)s)")
    parser.add_argument("--data", nargs="+", metavar="FILE.jsonl", help="files of prompts (those in bench/prompts)")
    parser.add_argument("--limit", type=whole(1), default=4, help="prompts of each file (%(default)s)")
    parser.add_argument("--max-tokens", type=whole(1), default=96, help="tokens of each answer (%(default)s)")
    parser.add_argument("--branches", type=int, help="outcomes that ssd prepares for (the engine's default)")
    parser.add_argument("--temperatures", type=listed(float), default="0", help="temperatures (%(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write the results to this file")
    args = parser.parse_args(argv)
    check_names(parser, "--modes", args.modes.split(","), MODES)

    from ssd.model import Tokenizer, resolve

    tokenizer = Tokenizer(resolve(args.target))
    texts = workloads_of(parser, args)
    options = {"target": args.target, "draft": args.draft, "dtype": args.dtype}
    workers = {}
    rows = []
    try:
        for name in args.modes.split(","):
            cores, mode = MODES[name]
            more = {"branches": args.branches} if args.branches else {}
            workers[name] = Worker("bench.theory:Runner", cores_of(cores), {"mode": mode, **options, **more})
            workers[name].call("generate", ids=[1, 2, 3], temperature=0.0, seed=0, max_tokens=32)
        for workload, t in [(w, t) for w in texts for t in args.temperatures]:
            speeds = defaultdict(list)
            for worker in workers.values():
                worker.call("forget")
            for n, prompt in enumerate(texts[workload]):
                ids = tokenizer.encode_chat([{"role": "user", "content": prompt}])
                for name, worker in workers.items():
                    time.sleep(REST)
                    speed = worker.call("generate", ids=ids, temperature=t, seed=n, max_tokens=args.max_tokens)
                    speeds[name].append(speed)
            middle = {name: statistics.median(values) for name, values in speeds.items()}
            row = {"workload": workload, "temperature": t, "prompts": len(texts[workload])}
            row["tokens_per_second"] = middle
            if "ssd" in workers:
                stats = workers["ssd"].call("stats")
                row["ssd_over_sd"] = middle["ssd"] / middle["sd"] if "sd" in middle else None
                row |= of_ssd(stats, stats["tokens_per_second"])
            rows.append(row)
            print(row, file=sys.stderr, flush=True)
            results.write(args.json, rows)
    finally:
        for worker in workers.values():
            worker.close()
    flat = [r | {k: f"{v:.0f}" for k, v in r["tokens_per_second"].items()} for r in rows]
    print(results.table(flat, [k for k in flat[0] if k != "tokens_per_second"]))
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main, ValueError))
