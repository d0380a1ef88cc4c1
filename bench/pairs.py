"""Speculation on pairs whose weights were not made for it: `python -m bench.pairs --json F`.

The pairs, or another one named by --target and --draft:
`coder`: Qwen2.5-Coder-1.5B-Instruct with the 0.5B-Instruct, both in q4, fetched once (1.6 GB).
`dithered-fp32`, `dithered-bf16`: the default target with its weights moved off the grid of four bits, in fp32 or bf16,
and its own weights in q4 as the draft.

With n cores (--cores) for the target: plain decoding (ar), speculation on the same cores (sd), and the draft on a core
of its own beside them (ssd); then ar and sd on n + 1 cores. Each runs in a process of its own that keeps to its cores,
and they take turns prompt by prompt. All have to answer with the same tokens; where one does not, the program says so
and ends with 1. Warm-up is not timed.

`rows`: pair, target, draft, target_dtype, draft_dtype, workload, temperature, mode, cores (of the target), k (null
where it adapts, or in mode ar), prompts, max_tokens, tokens_per_second {median, min, max}, tokens_per_round (of a
verification), acceptance_rate, hit_rate, over_sd (speed by that of sd with the target on the same cores: the median of
the ratios of the same turns), over_sd_all (the same with all cores of the row for sd: for ssd, sd on n + 1), itl_ms
{p50, p99} (from one piece of an answer to the next; a piece is what a round emits), cpu_seconds_per_token (of all
threads, those that wait included).
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ssd.cli.command import guarded, listed, whole
from ssd.model import Tokenizer, resolve

from . import pair_files, results
from .decode import WARM_UP_TOKENS, take_turns, total
from .machine import CORES, cores_of
from .timing import ratio, spread
from .worker import Worker, WorkerError
from .workloads import check_names, workloads_of

MODES = ("ar", "sd", "ssd")
PAIRS = ("coder", "dithered-fp32", "dithered-bf16")
COLUMNS = (
    "pair", "workload", "temperature", "mode", "cores", "k", "tokens_per_second", "tokens_per_round", "acceptance_rate",
    "hit_rate", "over_sd", "over_sd_all", "itl_ms", "cpu_seconds_per_token",
)  # fmt: skip


class Differs(Exception):
    """Two modes answered with different tokens."""


@dataclass(frozen=True)
class Pair:
    name: str
    target: str
    draft: str
    target_dtype: str
    draft_dtype: str


def pair_of(name: str, args) -> Pair:
    """One of PAIRS, fetched or made if it is not there yet, or the one that --target and --draft name.

    Raises OSError or ValueError (one sentence).
    """
    if name == "coder":
        models, dtypes = (pair_files.fetched(pair_files.TARGET), pair_files.fetched(pair_files.DRAFT)), ("q4", "q4")
    elif name in PAIRS:
        models, dtypes = (pair_files.dithered(),) * 2, (name.partition("-")[2], "q4")
    else:
        models, dtypes = (resolve(args.target), resolve(args.draft)), ("bf16", "int8")
    return Pair(name, *map(str, models), args.dtype or dtypes[0], args.draft_dtype or dtypes[1])


def adaptive_or_whole(text: str) -> int | None:
    return None if text == "adaptive" else whole(1)(text)


def configurations(modes: list[str], ks: list[int | None], n: int) -> list[tuple]:
    """(mode, cores of the target, k) of every worker."""
    found = [("ar", c, None) for c in (n, n + 1) if "ar" in modes]
    found += [("sd", c, k) for k in ks for c in (n, n + 1) if "sd" in modes]
    return found + [("ssd", n, k) for k in ks if "ssd" in modes]


def start(pair: Pair, configuration: tuple) -> Worker:
    mode, cores, k = configuration
    draft = {} if mode == "ar" else {"draft": pair.draft, "draft_dtype": pair.draft_dtype}
    args = {"target": pair.target, "precision": pair.target_dtype, "mode": f"{mode}:{k}" if k else mode}
    args |= {"max_batch": 1, "max_model_len": 2048, **draft}
    return Worker("bench.peers.ssd:Peer", cores_of(cores + (mode == "ssd")), args)


def check_same(runs: dict) -> None:
    """Raises Differs where configurations answered a prompt with different tokens."""
    first, *others = runs
    for other in others:
        for turn, (a, b) in enumerate(zip(runs[first], runs[other], strict=True)):
            if a["tokens"] != b["tokens"]:
                names = (f"{mode} on {cores} cores, k {k}" for mode, cores, k in (first, other))
                raise Differs(f"{' and '.join(names)} answered turn {turn} with different tokens")


def summary(runs: dict, configuration: tuple) -> dict:
    """The measured part of a row."""
    mode, cores, k = configuration
    mine = runs[configuration]
    counts = total([r["counts"] for r in mine])
    tried = counts.get("hits", 0) + counts.get("misses", 0)
    seconds = {c: [r["decode_seconds"] / r["decode_tokens"] for r in runs[c]] for c in runs}
    k = next((c[2] for c in runs if c[0] == "sd"), None) if mode == "ar" else k
    sd, sd_all = ("sd", cores, k), ("sd", cores + (mode == "ssd"), k)
    gaps = 1e3 * np.array([gap for r in mine for gap in r["gaps"]])
    return {
        "tokens_per_second": spread([1 / s for s in seconds[configuration]]),
        "tokens_per_round": counts["decode_tokens"] / counts["rounds"],
        "acceptance_rate": sum(counts["accepted"]) / sum(counts["proposed"]) if counts["proposed"] else None,
        "hit_rate": counts["hits"] / tried if tried else None,
        "over_sd": ratio(seconds, configuration, sd) if sd in runs else None,
        "over_sd_all": ratio(seconds, configuration, sd_all) if sd_all in runs else None,
        "itl_ms": {"p50": float(np.percentile(gaps, 50)), "p99": float(np.percentile(gaps, 99))},
        "cpu_seconds_per_token": sum(r["cpu_seconds"] for r in mine) / sum(r["decode_tokens"] for r in mine),
    }


def measure(pair: Pair, wanted: list[tuple], workloads: dict[str, list[str]], args):
    """The rows of a pair, as they come. Raises Differs, WorkerError."""
    tokenizer = Tokenizer(pair.target)
    ids = {w: [tokenizer.encode_chat([{"role": "user", "content": p}]) for p in ps] for w, ps in workloads.items()}
    workers = {}
    try:
        for c in wanted:
            workers[c] = start(pair, c)
            workers[c].call("generate", ids=next(iter(ids.values()))[0], max_tokens=WARM_UP_TOKENS)
        for workload, prompts in ids.items():
            for t in args.temperatures:
                runs = take_turns(workers, prompts, args.max_tokens, args.repeats, temperature=t)
                check_same(runs)
                for mode, cores, k in wanted:
                    about = {"pair": pair.name, "target": Path(pair.target).name, "draft": Path(pair.draft).name}
                    about |= {"target_dtype": pair.target_dtype, "draft_dtype": pair.draft_dtype, "workload": workload}
                    about |= {"temperature": t, "mode": mode, "cores": cores, "k": k}
                    about |= {"prompts": len(prompts), "max_tokens": args.max_tokens}
                    yield about | summary(runs, (mode, cores, k))
    finally:
        for worker in workers.values():
            worker.close()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", default=",".join(PAIRS), help="some of the pairs (%(default)s)")
    parser.add_argument("--target", help="folder, GGUF file or id of another pair's target; needs --draft")
    parser.add_argument("--draft", help="folder, GGUF file or id of another pair's draft; needs --target")
    parser.add_argument("--dtype", help="precision of the target (the pair's; bf16 for another pair)")
    parser.add_argument("--draft-dtype", help="precision of the draft (the pair's; int8 for another pair)")
    parser.add_argument("--modes", default=",".join(MODES), help="some of the modes (%(default)s)")
    parser.add_argument("--cores", type=whole(1), help="cores of the target (all but one)")
    parser.add_argument("-k", default="adaptive", help="tokens of a speculation, such as adaptive,4 (%(default)s)")
    parser.add_argument("--temperatures", type=listed(float), default="0,1", help="temperatures (%(default)s)")
    parser.add_argument("--data", nargs="+", metavar="FILE.jsonl", help="files of prompts (those in bench/prompts)")
    parser.add_argument("--limit", type=whole(1), default=3, help="prompts of each file (%(default)s)")
    parser.add_argument("--max-tokens", type=whole(2), default=96, help="tokens of each answer (%(default)s)")
    parser.add_argument("--repeats", type=whole(1), default=1, help="runs of each prompt (%(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write the results to this file")
    args = parser.parse_args(argv)
    names, modes = args.pairs.split(","), args.modes.split(",")
    check_names(parser, "--pairs", names, PAIRS)
    check_names(parser, "--modes", modes, MODES)
    if bool(args.target) != bool(args.draft):
        parser.error("--target and --draft: got one of them, wanted both or none")
    try:
        ks = [adaptive_or_whole(text) for text in args.k.split(",")]
    except argparse.ArgumentTypeError as e:
        parser.error(f"-k: {e}, or adaptive")
    cores = args.cores or max(1, len(CORES) - 1)
    cores_of(cores + 1)
    texts, rows = workloads_of(parser, args), []
    try:
        for name in ["named"] if args.target else names:
            pair = pair_of(name, args)
            for row in measure(pair, configurations(modes, ks, cores), texts, args):
                rows.append(row)
                results.write(args.json, rows)
                print(results.table([row], list(COLUMNS)).splitlines()[-1], file=sys.stderr, flush=True)
    except Differs as e:
        print(f"ssd: {e}", file=sys.stderr)
        return 1
    print(results.table(rows, list(COLUMNS)))
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main, ValueError, WorkerError))
