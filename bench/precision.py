"""How close weights of fewer bits come to fp32: `python -m bench.precision --data F.jsonl --json F`.

fp32 answers every prompt greedily. Then each precision answers too, and reads prompt and fp32's answer in one pass.
`rows`: precision, workload, prompts, tokens (of fp32's answers), agreement (share of these tokens that are also the
precision's most probable), same_text (share of prompts with equal answers), perplexity (of the prompts' tokens, chat
template included), perplexity_change (against fp32; 0.01 is one per cent more).
"""

import argparse
import math
import sys

import torch

from ssd.cli.command import guarded, whole
from ssd.model.batch import Batch

from . import results
from .workloads import workloads_of


def read(model, ids: list[int], start: int) -> tuple[int, float]:
    """(how many of the ids from `start` on are the most probable ones, -log probability of those before)."""
    kv = model.new_kv_cache(-(-len(ids) // 16))
    logits = model.forward(Batch.chain(ids), kv)[:-1]
    wanted = torch.tensor(ids[1:])
    own = (logits.argmax(-1) == wanted)[start - 1 :]
    lost = torch.nn.functional.cross_entropy(logits[: start - 1], wanted[: start - 1], reduction="sum")
    return int(own.sum()), float(lost)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", help="folder or id of the model (the default target)")
    parser.add_argument("--precisions", default="bf16,int8,q4", help="precisions beside fp32 (%(default)s)")
    parser.add_argument("--data", nargs="+", metavar="FILE.jsonl", help="files of prompts (those in bench/prompts)")
    parser.add_argument("--limit", type=whole(1), default=10, help="prompts of each file (%(default)s)")
    parser.add_argument("--max-tokens", type=whole(1), default=64, help="tokens of each answer (%(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write the results to this file")
    args = parser.parse_args(argv)
    texts = workloads_of(parser, args)

    from ssd import LLM, SamplingParams
    from ssd.model import Llama, Tokenizer, resolve

    folder = resolve(args.target)
    tokenizer = Tokenizer(folder)
    params = SamplingParams(max_tokens=args.max_tokens)
    prompts = {w: [tokenizer.encode_chat([{"role": "user", "content": p}]) for p in ps] for w, ps in texts.items()}
    answers = {}
    perplexity = {}
    rows = []
    for precision in ["fp32", *args.precisions.split(",")]:
        model = Llama.load(folder, precision)
        llm = LLM.from_model(model, tokenizer)
        for workload, asked in prompts.items():
            own = [out.token_ids for out in llm.generate(asked, params)]
            exact = answers.setdefault(workload, own)
            found = [read(model, p + a, len(p)) for p, a in zip(asked, exact, strict=True)]
            lost = math.exp(sum(n for _, n in found) / sum(len(p) - 1 for p in asked))
            tokens = sum(map(len, exact))
            row = {"precision": precision, "workload": workload, "prompts": len(asked), "tokens": tokens}
            row["agreement"] = sum(n for n, _ in found) / tokens
            row["same_text"] = sum(a == b for a, b in zip(own, exact, strict=True)) / len(asked)
            row |= {"perplexity": lost, "perplexity_change": lost / perplexity.setdefault(workload, lost) - 1}
            rows.append(row)
            results.write(args.json, rows)
        llm.close()
    print(results.table(rows, list(rows[0])))
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main, ValueError))
