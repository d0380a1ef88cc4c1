"""Decoding speed of whole systems: `python -m bench.decode --json F`.

All systems get the same token ids (the chat template is applied once), decode the same number of tokens greedily past
any end-of-sequence token, and use the same cores, each in a process of its own. Warm-up is not timed. The systems take
turns prompt by prompt. A system that is not installed, or lacks what it needs, is left out with a message.

The JSON file has the machine and these parts:
`rows`: system, mode (sd:3 is sd with -k 3), precision, cores, workload, prompts, max_tokens, tokens_per_second (tokens
after the first piece by the time after it), prefill_seconds, decode_seconds, total_seconds (each {median, min, max}
over prompts), speed_up (median over prompts, against the same system and precision in mode ar), peak_bytes (resident
memory of the process), counts (ssd only: its rounds, passes and times, summed over prompts).
`agreement`: for each pair of configurations of one precision, the share of prompts with the same text, and the share
of tokens before the first difference.
`prefill`, with --prefill N: system, mode, precision, cores, prompt_tokens, seconds to the first token.
`costs`, where mode sd is measured: precision, cores, workload, and seconds of a pass of target and draft by rows, means
over prompts, from which `python -m ssd.simulate --measured F` predicts the speeds.
The tables as Markdown and plots are written beside F.
"""

import argparse
import sys
import time
from collections import defaultdict
from itertools import zip_longest
from pathlib import Path

import torch

from ssd.cli.command import guarded, listed, whole

from . import plots, results
from .agreement import agreement
from .machine import cores_of
from .peers import SYSTEMS
from .timing import REST, ratio, spread
from .worker import Worker, WorkerError
from .workloads import check_names, workloads_of

WARM_UP_TOKENS = 8


def configurations(systems: list[str], modes: list[str], peer_modes: list[str], precisions: list[str] | None):
    """(system, mode, precision) for everything that was asked for and that the systems support."""
    for name in systems:
        system = SYSTEMS[name]
        for mode in modes if name == "ssd" else peer_modes:
            for precision in system.precisions:
                if mode.partition(":")[0] in system.modes and (precisions is None or precision.lower() in precisions):
                    yield name, mode, precision


def start(configuration, cores: list[int], target: str, options: dict) -> Worker | None:
    system, mode, precision = configuration
    args = {"target": target, "precision": precision, "mode": mode, **options.get(system, {})}
    if mode == "assisted":
        args["assistant"] = options.get("assistant")
    try:
        if SYSTEMS[system].gpu and not torch.cuda.is_available():
            raise WorkerError("it needs a GPU")
        return Worker(SYSTEMS[system].factory, cores, args)
    except WorkerError as e:
        print(f"{system} {mode} {precision} left out: {e}", file=sys.stderr)


def take_turns(
    workers: dict, prompts: list[list[int]], max_tokens: int, repeats: int = 1, costs=None, **sampling
) -> dict:
    """The runs of every worker on every prompt, by configuration. Each prompt starts with another worker. costs: lists
    by configuration; ssd in mode sd appends its costs of passes after each run, so that a disturbance affects both.
    sampling: more arguments of a worker's generate."""
    runs = defaultdict(list)
    for turn, ids in enumerate(prompts * repeats):
        order = list(workers.items())
        for configuration, worker in order[turn % len(order) :] + order[: turn % len(order)]:
            time.sleep(REST)
            runs[configuration].append(worker.call("generate", ids=ids, max_tokens=max_tokens, **sampling))
            if costs is not None and configuration[:2] == ("ssd", "sd"):
                costs[configuration].append(worker.call("costs"))
    return runs


def mean(costs: list[dict]) -> dict:
    """The mean of dictionaries of times by rows, entry by entry."""
    return {name: {rows: t / len(costs) for rows, t in times.items()} for name, times in total(costs).items()}


def total(parts: list[dict]) -> dict:
    """The sum of dictionaries, key by key; lists are added item by item, dictionaries recursively."""
    out: dict = {}
    for key, value in (item for part in parts for item in part.items()):
        if isinstance(value, dict):
            out[key] = total([out.get(key, {}), value])
        elif isinstance(value, list):
            out[key] = [a + b for a, b in zip_longest(out.get(key, []), value, fillvalue=0)]
        else:
            out[key] = out.get(key, 0) + value
    return out


def measure(n: int, wanted: list[tuple], target: str, options: dict, workloads: dict, args) -> dict[str, list]:
    """The parts `rows`, `agreement`, `prefill` and `costs` for n cores."""
    cores = cores_of(n)
    rows = []
    prefill = []
    costs = []
    texts = defaultdict(list)
    workers = {c: w for c in wanted if (w := start(c, cores, target, options))}
    try:
        first = next(iter(workloads.values()))[0]
        for c, worker in list(workers.items()):
            try:
                worker.call("generate", ids=first, max_tokens=WARM_UP_TOKENS)
            except WorkerError as e:
                print(f"{' '.join(c)} left out: {e}", file=sys.stderr)
                workers.pop(c).close()
        for workload, prompts in workloads.items() if workers else ():
            timed = defaultdict(list)
            runs = take_turns(workers, prompts, args.max_tokens, args.repeats, timed)
            for c in workers:
                about = {"workload": workload, "prompts": len(prompts), "max_tokens": args.max_tokens}
                counts = {"counts": total([r["counts"] for r in runs[c]])} if "counts" in runs[c][0] else {}
                rows.append(keys(c, n) | about | summary(runs, c) | counts)
                texts[c] += [r["tokens"] for r in runs[c][: len(prompts)]]
                if timed[c]:
                    costs.append({"precision": c[2], "cores": n, "workload": workload} | mean(timed[c]))
        if args.prefill and workers:
            runs = take_turns(workers, long_prompts(workloads, args.prefill), 1)
            for c in workers:
                seconds = spread([r["prefill_seconds"] for r in runs[c]])
                prefill.append({**keys(c, n), "prompt_tokens": args.prefill, "seconds": seconds})
        peak = {c: w.call("peak_memory") for c, w in workers.items()}
        for row in rows:
            row["peak_bytes"] = peak[row["system"], row["mode"], row["precision"]]
    finally:
        for worker in workers.values():
            worker.close()
    same = [{"cores": n, **pair} for pair in agreement(texts)]
    return {"rows": rows, "agreement": same, "prefill": prefill, "costs": costs}


def summary(runs: dict, configuration: tuple) -> dict:
    """Speeds and times of a configuration's runs of one workload."""
    mine = runs[configuration]
    plain = (configuration[0], "ar", configuration[2])
    times = {c: [r["decode_seconds"] / max(r["decode_tokens"], 1) for r in runs[c]] for c in (configuration, plain)}
    return {
        "tokens_per_second": spread([r["decode_tokens"] / r["decode_seconds"] for r in mine]),
        "speed_up": ratio(times, configuration, plain) if times[plain] else None,
        "prefill_seconds": spread([r["prefill_seconds"] for r in mine]),
        "decode_seconds": spread([r["decode_seconds"] for r in mine]),
        "total_seconds": spread([r["prefill_seconds"] + r["decode_seconds"] for r in mine]),
    }


def keys(configuration: tuple, cores: int) -> dict:
    return dict(zip(("system", "mode", "precision"), configuration, strict=True)) | {"cores": cores}


def long_prompts(workloads: dict, length: int, count: int = 5) -> list[list[int]]:
    """Prompts of `length` tokens that share no prefix: the workloads' tokens, each from another position on."""
    ids = [i for prompts in workloads.values() for prompt in prompts for i in prompt]
    ids *= length // len(ids) + 2
    step = (len(ids) - length) // count
    return [ids[k * step : k * step + length] for k in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", help="folder or id of the model; the default target otherwise")
    parser.add_argument("--modes", default="ar,sd,ssd,auto", help="modes of ssd; sd:3 is sd with -k 3 (%(default)s)")
    parser.add_argument("--peers", default=",".join(SYSTEMS), help="other systems, or an empty string (all)")
    parser.add_argument(
        "--peer-modes", default="ar,lookup", help="modes of other systems: ar, lookup, assisted (%(default)s)"
    )
    parser.add_argument("--assistant", metavar="DIR", help="add mode assisted of other systems, with this draft")
    parser.add_argument("--precisions", help="precisions such as bf16,q4_1 (all that a system has)")
    parser.add_argument("--cores", type=listed(int), default="1,2", help="numbers of cores (%(default)s)")
    parser.add_argument("--device", help="device of ssd and transformers, such as cuda (the CPU)")
    parser.add_argument("--data", nargs="+", metavar="FILE.jsonl", help="files of prompts (those in bench/prompts)")
    parser.add_argument("--limit", type=whole(1), help="prompts of each file (all)")
    parser.add_argument("--max-tokens", type=whole(1), default=128, help="tokens of each answer (%(default)s)")
    parser.add_argument("--repeats", type=int, default=1, help="runs of each prompt (%(default)s)")
    parser.add_argument("--prefill", type=int, metavar="N", help="also time the first token after N prompt tokens")
    parser.add_argument("--draft", help="draft of ssd's speculative modes (the target's own)")
    parser.add_argument("--gguf", help="GGUF file for llama_cpp (found or made by precision)")
    parser.add_argument("--json", metavar="FILE", help="write the results to this file")
    args = parser.parse_args()

    from ssd.model import Tokenizer, resolve

    target = str(resolve(args.target))
    tokenizer = Tokenizer(target)
    texts = workloads_of(parser, args)
    workloads = {w: [tokenizer.encode_chat([{"role": "user", "content": p}]) for p in ps] for w, ps in texts.items()}
    systems = list(dict.fromkeys(["ssd", *filter(None, args.peers.split(","))]))
    check_names(parser, "--peers", systems, SYSTEMS)
    check_names(parser, "--modes", [m.partition(":")[0] for m in args.modes.split(",")], SYSTEMS["ssd"].modes)
    precisions = args.precisions and args.precisions.lower().split(",")
    peer_modes = args.peer_modes.split(",")
    if args.assistant and "assisted" not in peer_modes:
        peer_modes.append("assisted")
    wanted = list(configurations(systems, args.modes.split(","), peer_modes, precisions))
    device = {"device": args.device} if args.device else {}
    options = {
        "ssd": device | ({"draft": args.draft} if args.draft else {}),
        "transformers": device,
        "llama_cpp": {"gguf": args.gguf} if args.gguf else {},
        "assistant": args.assistant,
    }

    found = defaultdict(list)
    for n in args.cores:
        for part, more in measure(n, wanted, target, options, workloads, args).items():
            found[part] += more
        results.write(args.json, **found)
    for name, draw in plots.DECODE.items():
        plots.beside(args.json, draw, found["rows"], name)
    columns = ["system", "mode", "precision", "cores", "workload", "tokens_per_second", "speed_up", "prefill_seconds"]
    tables = [results.table(found["rows"], [*columns, "total_seconds", "peak_bytes"])]
    pairs = [p for p in found["agreement"] if p["modes"] == "ar, ar"] or found["agreement"]
    for rows in (pairs, found["prefill"]):
        if rows:
            tables.append(results.table(rows, list(rows[0])))
    print("\n\n".join(tables))
    if args.json:
        Path(args.json).with_suffix(".md").write_text("\n\n".join(tables) + "\n")


if __name__ == "__main__":
    sys.exit(guarded(main, ValueError))
