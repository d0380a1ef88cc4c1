"""Decoding speed of whole systems: `python -m bench.decode --peers transformers,llama_cpp --cores 1,2 --json F`.

All systems get the same token ids (the chat template applied once), decode the same number of tokens greedily past
any end-of-sequence token, and keep to the same cores, each in a process of its own. Warm-up is outside; prompt by
prompt the systems take turns. `rows`: system, mode, precision, cores, workload, prompts, tokens_per_second {median,
min, max} over prompts (tokens after the first piece by the time after it), prefill_seconds and total_seconds
(medians), peak_bytes (resident, of the process), agreement (share of prompts with the same tokens as each other
system of that precision), counts (of ssd: sums over prompts of its rounds, passes and times). With --prefill N,
`prefill`: system, mode, precision, cores, prompt_tokens, seconds to the first token {median, min, max}. Where mode sd
is measured, `costs`: precision, cores, workload, and seconds of a pass of target and draft by its rows, from which
`python -m ssd.simulate --measured F` predicts the speeds.
"""

import argparse
import json
import sys
import time
from collections import defaultdict
from itertools import zip_longest
from pathlib import Path

from . import plots, results
from .machine import cores_of
from .peers import SYSTEMS
from .timing import REST, spread
from .worker import Worker, WorkerError

PROMPTS = Path(__file__).parent / "prompts"
WARM_UP_TOKENS = 8


def read_workloads(files: list[str], limit: int | None) -> dict[str, list[str]]:
    """Workload (the file's stem) to its prompts. Raises ValueError that names the file and line."""
    workloads = {}
    for file in map(Path, files):
        prompts = []
        for number, line in enumerate(file.read_text().splitlines()[:limit], 1):
            try:
                prompts.append(json.loads(line)["prompt"])
            except (json.JSONDecodeError, KeyError, TypeError):
                raise ValueError(f"{file}:{number}: wanted an object with a `prompt`") from None
        workloads[file.stem] = prompts
    return workloads


def configurations(systems: list[str], modes: list[str], peer_modes: list[str], precisions: list[str] | None):
    """(system, mode, precision) of everything asked for that the systems have."""
    for name in systems:
        system = SYSTEMS[name]
        for mode in modes if name == "ssd" else peer_modes:
            for precision in system.precisions:
                if mode in system.modes and (precisions is None or precision.lower() in precisions):
                    yield name, mode, precision


def start(configuration, cores: list[int], target: str, options: dict) -> Worker | None:
    system, mode, precision = configuration
    args = {"target": target, "precision": precision, "mode": mode, **options.get(system, {})}
    try:
        return Worker(SYSTEMS[system].factory, cores, args)
    except WorkerError as e:
        print(f"{system} {mode} {precision} left out: {e}", file=sys.stderr)


def take_turns(workers: dict, prompts: list[list[int]], max_tokens: int, repeats: int = 1) -> dict:
    """Every worker on every prompt, who begins changing from prompt to prompt: configuration to its runs."""
    runs = defaultdict(list)
    for turn, ids in enumerate(prompts * repeats):
        order = list(workers.items())
        for configuration, worker in order[turn % len(order) :] + order[: turn % len(order)]:
            time.sleep(REST)
            runs[configuration].append(worker.call("generate", ids=ids, max_tokens=max_tokens))
    return runs


def agreement(runs: dict, configuration: tuple) -> dict[str, float]:
    """Share of prompts with the same tokens, by each other configuration of the same precision."""
    mine = [r["tokens"] for r in runs[configuration]]
    return {
        f"{system} {mode}": sum(a == r["tokens"] for a, r in zip(mine, other, strict=True)) / len(mine)
        for (system, mode, precision), other in runs.items()
        if precision == configuration[2] and (system, mode, precision) != configuration
    }


def total(parts: list[dict]) -> dict:
    """Sums of dictionaries of numbers, of lists of them by place and of dictionaries, key by key."""
    out: dict = {}
    for key, value in (item for part in parts for item in part.items()):
        if isinstance(value, dict):
            out[key] = total([out.get(key, {}), value])
        elif isinstance(value, list):
            out[key] = [a + b for a, b in zip_longest(out.get(key, []), value, fillvalue=0)]
        else:
            out[key] = out.get(key, 0) + value
    return out


def measure(n: int, wanted: list[tuple], target: str, options: dict, workloads: dict, args) -> tuple[list, list, list]:
    cores, rows, prefill, costs = cores_of(n), [], [], []
    workers = {c: w for c in wanted if (w := start(c, cores, target, options))}
    try:
        first = next(iter(workloads.values()))[0]
        for worker in workers.values():
            worker.call("generate", ids=first, max_tokens=WARM_UP_TOKENS)
        for workload, prompts in workloads.items() if workers else ():
            runs = take_turns(workers, prompts, args.max_tokens, args.repeats)
            for c in workers:
                rates = [r["decode_tokens"] / r["decode_seconds"] for r in runs[c]]
                seconds = [r["prefill_seconds"] for r in runs[c]]
                whole = [r["prefill_seconds"] + r["decode_seconds"] for r in runs[c]]
                rows.append(
                    {**keys(c, n), "workload": workload, "prompts": len(prompts), "max_tokens": args.max_tokens}
                    | {"tokens_per_second": spread(rates), "prefill_seconds": spread(seconds)["median"]}
                    | {"total_seconds": spread(whole)["median"], "agreement": agreement(runs, c)}
                    | ({"counts": total([r["counts"] for r in runs[c]])} if "counts" in runs[c][0] else {})
                )
            for (system, mode, precision), worker in workers.items():
                if (system, mode) == ("ssd", "sd"):  # beside the runs, so that a disturbance meets them too
                    time.sleep(REST)
                    costs.append({"precision": precision, "cores": n, "workload": workload} | worker.call("costs"))
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
    return rows, prefill, costs


def keys(configuration: tuple, cores: int) -> dict:
    return dict(zip(("system", "mode", "precision"), configuration, strict=True)) | {"cores": cores}


def long_prompts(workloads: dict, length: int, count: int = 5) -> list[list[int]]:
    """Prompts of `length` tokens that share no beginning: the workloads' tokens, from different places on."""
    ids = [i for prompts in workloads.values() for prompt in prompts for i in prompt]
    ids *= length // len(ids) + 2
    step = (len(ids) - length) // count
    return [ids[k * step : k * step + length] for k in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", help="folder or id of the model; the default target otherwise")
    parser.add_argument("--modes", default="ar", help="modes of ssd: ar, sd, ssd, auto")
    parser.add_argument("--peers", default="transformers,llama_cpp", help="other systems, or an empty string")
    parser.add_argument("--peer-modes", default="ar", help="modes of the others: ar, lookup")
    parser.add_argument("--precisions", help="only these, such as bf16,q4_1; by default all that a system has")
    parser.add_argument("--cores", default="1,2", help="numbers of cores")
    parser.add_argument("--data", nargs="+", metavar="FILE.jsonl", help="files of prompts; three of our own otherwise")
    parser.add_argument("--limit", type=int, help="prompts of each file")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=1, help="times that each prompt is run")
    parser.add_argument("--prefill", type=int, metavar="N", help="also time to the first token of N prompt tokens")
    parser.add_argument("--draft", help="draft of ssd's speculative modes")
    parser.add_argument("--gguf", help="file for llama_cpp")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()

    from ssd.model import Tokenizer, resolve

    target = str(resolve(args.target))
    tokenizer = Tokenizer(target)
    texts = read_workloads(args.data or sorted(map(str, PROMPTS.glob("*.jsonl"))), args.limit)
    workloads = {w: [tokenizer.encode_chat([{"role": "user", "content": p}]) for p in ps] for w, ps in texts.items()}
    systems = ["ssd", *filter(None, args.peers.split(","))]
    if unknown := [s for s in systems if s not in SYSTEMS]:
        parser.error(f"--peers: {unknown[0]} is unknown, wanted some of {', '.join(SYSTEMS)}")
    precisions = args.precisions and args.precisions.lower().split(",")
    wanted = list(configurations(systems, args.modes.split(","), args.peer_modes.split(","), precisions))
    options = {
        "ssd": {"draft": args.draft} if args.draft else {},
        "llama_cpp": {"gguf": args.gguf} if args.gguf else {},
    }

    rows, prefill, costs = [], [], []
    for n in map(int, args.cores.split(",")):
        more = measure(n, wanted, target, options, workloads, args)
        rows, prefill, costs = (kept + new for kept, new in zip((rows, prefill, costs), more, strict=True))
        results.write(args.json, rows, prefill=prefill, costs=costs)
    plots.beside(args.json, plots.decode, rows)
    columns = ["system", "mode", "precision", "cores", "workload", "tokens_per_second", "prefill_seconds"]
    print(results.table(rows, [*columns, "total_seconds", "peak_bytes"]))
    if prefill:
        print(results.table(prefill, ["system", "mode", "precision", "cores", "prompt_tokens", "seconds"]))


if __name__ == "__main__":
    main()
