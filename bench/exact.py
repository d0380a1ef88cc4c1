"""Whether speculation changes a token: `python -m bench.exact --modes sd --data F.jsonl --limit N --json F`.

Every configuration of mode, draft, shape, precision, temperature and batch answers the same prompts with the same
seeds as plain decoding, and the token ids are compared. Three settings take turns from one configuration to the next:
the prefill chunk, the memory, and the bonus tokens that ssd prepares for below a node.

Memory: `cold` keeps no prefixes; `warm` keeps them and answers everything twice; `small` is warm with a KV cache for
half of what a batch needs, so that requests are preempted and recomputed; `scarce` is small and cold.
--delays: both lanes of ssd sleep at random moments. --features: penalties, bias and JSON mode take turns from prompt to
prompt, and log-probabilities are compared too.

JSON: `compared` (answers), `tokens` (in them), `differences`, `first_difference` (configuration, prompt, index,
both sequences; null if there is none), `rows` (configuration, compared, differences, acceptance_rate,
mean_accepted_length, hit_rate, cached_prompt_tokens, preemptions). The exit code is 1 if there are differences.
"""

import argparse
import itertools
import random
import sys
import time

from ssd.cli.command import guarded, listed, whole
from ssd.shared_options import used

from . import results
from .workloads import check_names, workloads_of


def product(args) -> list[dict]:
    """All configurations. Prefill chunk, memory and fan-out take turns instead of multiplying them."""
    memories = args.memory.split(",")
    chunks = itertools.cycle(args.chunks)
    fan_outs = itertools.cycle(args.fan_outs)
    names = ("dtype", "mode", "draft", "shape", "batch")
    values = (args.dtypes.split(","), args.modes.split(","), args.drafts.split(","), args.shapes.split(","))
    values += (args.batches,)
    found = [dict(zip(names, each, strict=True)) for each in itertools.product(*values)]
    found = [c for c in found if (c["mode"], c["draft"]) != ("ssd", "ngram")]
    plain = (args.drafts.split(",")[0], args.shapes.split(",")[0])  # mode ar has neither
    found = [c for c in found if c["mode"] != "ar" or (c["draft"], c["shape"]) == plain]
    n = len(memories)
    found = [c | {"chunk": next(chunks), "memory": memories[(i + i // n) % n]} for i, c in enumerate(found)]
    lanes = ("ssd", "auto")
    return [c | {"fan_out": next(fan_outs)} if c["mode"] in lanes and c["draft"] != "ngram" else c for c in found]


def shape_of(text: str) -> dict:
    """Options for a shape: "4x3" is k 4 with tree width 3, "4" a chain of 4; "auto" adapts, "auto3" with up to 3
    children a node."""
    if text.startswith("auto"):
        return {"tree_width": int(text[4:])} if text[4:] else {}
    k, _, width = text.partition("x")
    return {"k": int(k), "tree_width": int(width or 1)}


def delay_lanes(chance: random.Random) -> None:
    """Makes both lanes in this process sleep at random before the steps that the other lane may wait for."""
    from ssd.runtime.lanes.draft_lane import DraftLane
    from ssd.runtime.lanes.verify_lane import VerifyLane

    def delayed(method):
        def call(*args, **more):
            time.sleep(chance.choice((0, 0, 0, 0.0003, 0.001, 0.004)))
            return method(*args, **more)

        return call

    for owner, names in ((DraftLane, ("compute", "take", "write")), (VerifyLane, ("propose", "observe", "_take"))):
        for name in names:
            setattr(owner, name, delayed(getattr(owner, name)))


class Runner:
    """The target and its tokenizer; the model of one precision is kept in memory."""

    def __init__(self, target: str | None, threads: int | None, device: str = "cpu"):
        from ssd.model import Llama, Tokenizer, resolve
        from ssd.runtime.devices.placement import device_of

        self.device = str(device_of(device))
        self.threads = threads
        self.folder = resolve(target)
        self.target = target
        self.loaded = {}
        self.tokenizer = Tokenizer(self.folder)
        self.load = Llama.load

    def model(self, dtype: str):
        if dtype not in self.loaded:
            self.loaded = {dtype: self.load(self.folder, dtype, device=self.device)}
        return self.loaded[dtype]

    def llm(self, dtype: str, sizes: dict, **speculation):
        from ssd import LLM
        from ssd.runtime.factory import load_draft
        from ssd.runtime.options import SpeculationOptions

        model = self.model(dtype)
        draft = None
        options = SpeculationOptions(**speculation)
        speculation.pop("draft", None)
        if options.mode != "ar":
            draft = load_draft(options, str(self.folder), model)
        sizes = {"max_model_len": 2048, "threads": self.threads, "device": self.device} | sizes
        return LLM.from_model(model, self.tokenizer, draft=draft, **sizes, **speculation)


def memory_of(name: str, batch: int, lengths: list[int]) -> tuple[dict, int]:
    """(sizes of the KV cache, how often everything is answered). lengths: tokens of each request."""
    half = max(*lengths, sum(lengths) * batch // len(lengths) // 2)
    sizes = {"kv_tokens": half} if name in ("small", "scarce") else {}
    return (sizes, 2) if name in ("warm", "small") else (sizes | {"prefix_caching": False}, 1)


FEATURES = (
    {"json_object": True}, {"repetition_penalty": 1.2}, {"presence_penalty": 0.8, "frequency_penalty": 0.4}, {},
    {"logit_bias": {i: 0.01 * i - 1 for i in range(200)}, "repetition_penalty": 0.9},
)  # fmt: skip


def asked(args, n: int) -> dict:
    """The sampling parameters of prompt n beside temperature and seed."""
    return {"logprobs": True, "top_logprobs": n % 3} | FEATURES[n % len(FEATURES)] if args.features else {}


def told(answer) -> list:
    """The part of an answer that is compared: token ids, and log-probabilities if they were asked for."""
    if answer.logprobs is None:
        return answer.token_ids
    tops = answer.top_logprobs or [None] * len(answer.token_ids)
    return list(map(list, zip(answer.token_ids, answer.logprobs, tops, strict=True)))


def compare(runner: Runner, args, ids: list[list[int]]) -> dict:
    from ssd import SamplingParams

    temperatures = args.temperatures
    jobs = [(n, t, i) for t in temperatures for n, i in enumerate(ids)]
    common = {"max_tokens": args.max_tokens}
    params = [SamplingParams(temperature=t, seed=1000 + n, **common, **asked(args, n)) for n, t, _ in jobs]
    prompts = [i for _, _, i in jobs]
    plain = {}
    rows = []
    first = None
    lengths = [len(ids) + args.max_tokens for ids in prompts]
    tokens = 0
    for c in product(args):
        if c["dtype"] not in plain:
            answers = runner.llm(c["dtype"], {"max_batch": 1, "prefix_caching": False}).generate(prompts, params)
            plain = {c["dtype"]: list(map(told, answers))}
        draft = None if c["draft"] == "default" else c["draft"]
        how = shape_of(c["shape"]) | {"fan_out": c.get("fan_out") or None}
        sizes, times = memory_of(c["memory"], c["batch"], lengths)
        sizes |= {"max_batch": c["batch"], "prefill_chunk": c["chunk"]}
        llm = runner.llm(c["dtype"], sizes, **used({"mode": c["mode"], "draft": draft, **how}))
        got = [told(a) for _ in range(times) for a in llm.generate(prompts, params)]
        different = 0
        for (n, t, _), a, b in zip(jobs * times, plain[c["dtype"]] * times, got, strict=True):
            if a != b:
                different += 1
                at = next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
                first = first or {**c, "prompt": n, "temperature": t, "index": at, "plain": a, "got": b}
        stats = llm.stats()
        llm.close()
        names = ("acceptance_rate", "mean_accepted_length", "hit_rate", "cached_prompt_tokens", "preemptions")
        rows.append({**c, "compared": len(got), "differences": different, **{name: stats[name] for name in names}})
        tokens += sum(map(len, got))
        print(results.table(rows[-1:], list(rows[-1])).splitlines()[-1], file=sys.stderr, flush=True)
    return {
        "compared": sum(r["compared"] for r in rows),
        "tokens": tokens,
        "differences": sum(r["differences"] for r in rows),
        "first_difference": first,
        "rows": rows,
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", help="folder or id of the model (the default target)")
    parser.add_argument("--modes", default="sd", help="some of ar,sd,ssd,auto (%(default)s)")
    parser.add_argument("--drafts", default="default,ngram", help="default, ngram, or folders (%(default)s)")
    parser.add_argument("--shapes", default="4,3x3,auto", help="k, k x width, auto, or auto and width (%(default)s)")
    parser.add_argument("--dtypes", default="bf16,int8", help="precisions of the target (%(default)s)")
    parser.add_argument("--batches", type=listed(int), default="1,8", help="sizes of a batch (%(default)s)")
    parser.add_argument(
        "--chunks", type=listed(int), default="16,64,512", help="prompt rows of a pass, in turn (%(default)s)"
    )
    parser.add_argument("--memory", default="cold,warm,small,scarce", help="kinds of memory, in turn (%(default)s)")
    parser.add_argument(
        "--fan-outs", type=listed(int), default="0,1,4", help="bonus tokens below a node, in turn; 0: automatic"
    )
    parser.add_argument("--delays", action="store_true", help="delay both lanes of ssd at random by up to 4 ms")
    parser.add_argument("--features", action="store_true", help="use penalties, bias, JSON and log-probabilities too")
    parser.add_argument("--temperatures", type=listed(float), default="0,0.7,1.0", help="temperatures (%(default)s)")
    parser.add_argument("--data", nargs="+", metavar="FILE.jsonl", help="files of prompts (those in bench/prompts)")
    parser.add_argument("--limit", type=whole(1), default=40, help="prompts of each file (%(default)s)")
    parser.add_argument("--max-tokens", type=whole(1), default=64, help="tokens of each answer (%(default)s)")
    parser.add_argument("--device", default="cpu", help="device of target and draft: cpu, cuda or cuda:N (%(default)s)")
    parser.add_argument("--threads", type=int, help="threads of the target (one for each core)")
    parser.add_argument("--json", metavar="FILE", help="write the results to this file")
    args = parser.parse_args(argv)
    check_names(parser, "--modes", args.modes.split(","), ("ar", "sd", "ssd", "auto"))
    if args.delays:
        delay_lanes(random.Random(0))
    texts = workloads_of(parser, args)
    runner = Runner(args.target, args.threads, args.device)
    ids = [runner.tokenizer.encode_chat([{"role": "user", "content": p}]) for ps in texts.values() for p in ps]
    found = compare(runner, args, ids)
    results.write(args.json, found.pop("rows"), **found)
    print({name: found[name] for name in ("compared", "tokens", "differences", "first_difference")})
    return 1 if found["differences"] else 0


if __name__ == "__main__":
    sys.exit(guarded(main, ValueError))
