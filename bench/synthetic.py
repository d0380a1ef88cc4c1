"""The product with random weights: `python -m bench.synthetic --target Llama-8B --json F`.

LLM, engine, lanes and caches are those of every run, and so are prompt, passes and rounds. Only the weights are made
up, so no file is needed. The token after t is a random permutation of t: an output row is the embedding of the token
before it, beside which the layers add little. The draft's first choice is the same for a share of all tokens
(--acceptance), and for the others its second.

`rows`: mode, tokens, right (every token follows from the one before), first_seconds (a run whose kernels may have to be
compiled; all else is of a second one), tokens_per_second, speedup (over the first mode), round_ms, gb_per_s (the
target's weights by the time of a round), acceptance_rate, hit_rate, rollbacks. The exit code is 1 where a token is
wrong or a lane was given up.
"""

import argparse
import os
import sys
import time
from pathlib import Path

import torch

from ssd import LLM, SamplingParams, kernels
from ssd.cli.command import guarded
from ssd.model import Llama, LlamaConfig
from ssd.model.config import Rope
from ssd.model.draft import Draft
from ssd.model.memory import Arena
from ssd.model.rope import rope_tables
from ssd.model.weights import BLOCK, LayerWeights, Weights, pack_rows
from ssd.runtime.devices.placement import device_of
from ssd.shared_options import used

from . import results
from .shapes import MODELS, TINY, Model
from .workloads import check_names

SHAPES = MODELS | TINY
LAYER = 0.05  # what a layer adds to the residual stream, by the size of an embedding
LIKELIEST, SECOND = 16.0, 13.0  # logits
MODES = ("ar", "sd", "ssd", "auto")


class Numbers:
    """A tokenizer whose text is token ids."""

    eos_ids = ()

    def detokenizer(self, prompt=()):
        return self

    def add(self, token: int) -> str:
        return f"{token} "

    def finish(self) -> str:
        return ""


def chain(vocab: int) -> torch.Tensor:
    """The token after each, int64 [vocab]."""
    return torch.randperm(vocab, generator=torch.Generator().manual_seed(0))


def wrong_choices(after: torch.Tensor, acceptance: float) -> tuple[torch.Tensor, torch.Tensor]:
    """(tokens after which the draft is wrong, its first choice there); each is the right one after another of them."""
    random = torch.rand(len(after), generator=torch.Generator().manual_seed(1))
    tokens = (random >= acceptance).nonzero()[:, 0]
    return tokens, after[tokens.roll(-1)]


def random_weights(m: Model, device: str, after: torch.Tensor, acceptance: float = 1.0) -> Weights:
    """Weights of this shape in bfloat16 whose likeliest token is that of `after`, or of wrong_choices."""
    arena = Arena()
    norm_dtype = torch.float32 if device == "cpu" else torch.bfloat16

    def packed(n, k, rows):
        return pack_rows(rows, n, lambda w, outputs: kernels.pack_linear(w, "bf16", outputs), arena)

    def random(n, k, scale=1.0):
        return packed(n, k, lambda i, j: torch.randn(j - i, k, device=device) * (scale * k**-0.5))

    def norm():
        return torch.ones(m.hidden, dtype=norm_dtype, device=device)

    def layer():
        inner = -(-m.inner // BLOCK) * BLOCK
        return LayerWeights(
            norm(), random(*m.layers["qkv"]), None, random(*m.layers["o"], LAYER), None, norm(),
            random(2 * inner, m.hidden), None, random(m.hidden, inner, LAYER), None,
        )  # fmt: skip

    embedding = torch.nn.functional.normalize(torch.randn(m.vocab, m.hidden, device=device)) * m.hidden**0.5
    embedding = embedding.bfloat16()
    before = torch.empty_like(after).scatter_(0, after, torch.arange(m.vocab))
    tokens, choices = wrong_choices(after, acceptance)
    logit, other = torch.full((m.vocab,), LIKELIEST), torch.full((m.vocab,), -1)
    logit[after[tokens]] = SECOND
    other[choices] = tokens  # the token after which this one is a wrong choice
    before, logit, other = before.to(device), logit.to(device), other.to(device)

    def head(i, j):
        right = embedding[before[i:j]].float() * logit[i:j, None]
        wrong = embedding[other[i:j].clamp(min=0)].float() * (LIKELIEST * (other[i:j, None] >= 0))
        return (right + wrong) / m.hidden

    return Weights(embedding, [layer() for _ in range(m.depth)], norm(), packed(m.vocab, m.hidden, head))


def random_llama(m: Model, device: str, positions: int, kind=Llama, acceptance: float = 1.0) -> Llama:
    """A Llama or a Draft with random_weights; no file is read."""
    config = LlamaConfig(
        m.vocab, m.hidden, m.inner, m.depth, m.heads, m.kv_heads, m.head_dim, positions, 1e-5, Rope(), False, False,
        False, None, (),
    )  # fmt: skip
    weights = random_weights(m, device, chain(m.vocab), acceptance)
    return kind(config, weights, *(t.to(device) for t in rope_tables(config)), "bf16")


class Pair:
    """A target and a draft on a device, and a prompt of random tokens."""

    def __init__(self, target: Model, draft: Model, device: str, prefix: int, tokens: int, acceptance: float):
        torch.manual_seed(0)
        positions = prefix + tokens + 1
        self.device, self.tokens = str(device_of(device)), tokens
        self.model = random_llama(target, self.device, positions)
        self.draft = random_llama(draft, self.device, positions, Draft, acceptance)
        self.draft.folder = Path(os.devnull)  # nothing was learnt before
        self.prompt = torch.randint(target.vocab, (prefix,), generator=torch.Generator().manual_seed(2)).tolist()
        after, token, self.wanted = chain(target.vocab).tolist(), self.prompt[-1], []
        for _ in range(tokens):
            token = after[token]
            self.wanted.append(token)

    def run(self, options: dict) -> tuple[list[int], dict, float]:
        """(the answer, statistics, seconds of it all)."""
        begin = time.perf_counter()
        llm = LLM.from_model(self.model, Numbers(), draft=self.draft, max_batch=1, device=self.device, **used(options))
        (output,) = llm.generate(self.prompt, SamplingParams(max_tokens=self.tokens, ignore_eos=True))
        stats = llm.stats()
        llm.close()
        return output.token_ids, stats, time.perf_counter() - begin

    def row(self, **options) -> dict:
        first = self.run(options)
        ids, stats, _ = self.run(options)
        round_ms = stats["decode_passes"] and 1e3 * stats["decode_seconds"] / stats["decode_passes"]
        return {
            "mode": options["mode"],
            "tokens": len(ids),
            "right": ids == self.wanted == first[0],
            "first_seconds": first[2],
            "tokens_per_second": stats["tokens_per_second"],
            "round_ms": round_ms,
            "gb_per_s": round_ms and self.model.weight_bytes / round_ms / 1e6,
            **{name: stats[name] for name in ("acceptance_rate", "hit_rate")},
            "rollbacks": sum(s["recoveries"]["rollback"]["count"] for s in (first[1], stats)),
        }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=SHAPES, default="Llama-8B", help="shape of the target (%(default)s)")
    parser.add_argument("--draft", choices=SHAPES, default="Llama-1B", help="shape of the draft (%(default)s)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="device (%(default)s)")
    parser.add_argument("--modes", default="ar,sd,ssd", help="some of ar,sd,ssd,auto (%(default)s)")
    parser.add_argument("--prefix", type=int, default=1024, help="tokens of the prompt (%(default)s)")
    parser.add_argument("--tokens", type=int, default=256, help="tokens to decode (%(default)s)")
    parser.add_argument("-k", type=int, default=4, help="tokens of a speculation (%(default)s)")
    parser.add_argument("--branches", type=int, default=24, help="outcomes that ssd prepares for (%(default)s)")
    parser.add_argument("--acceptance", type=float, default=0.75, help="share of tokens that the draft knows (0.75)")
    parser.add_argument("--json", metavar="FILE", help="write the results to this file")
    args = parser.parse_args(argv)
    modes = args.modes.split(",")
    check_names(parser, "--modes", modes, MODES)
    pair = Pair(SHAPES[args.target], SHAPES[args.draft], args.device, args.prefix, args.tokens, args.acceptance)
    rows = []
    for mode in modes:
        row = {"target": args.target, "draft": args.draft, "device": args.device, "prefix": args.prefix}
        row |= {"k": args.k, "branches": args.branches, "acceptance": args.acceptance}
        row |= pair.row(mode=mode, k=args.k, branches=args.branches)
        rows.append(row | {"speedup": row["tokens_per_second"] / (rows or [row])[0]["tokens_per_second"]})
        results.write(args.json, rows)  # rows are kept even if a later mode fails
    columns = "mode device k branches acceptance tokens right first_seconds tokens_per_second speedup gb_per_s"
    print(results.table(rows, [*columns.split(), "acceptance_rate", "hit_rate", "rollbacks"]))
    return 0 if all(row["right"] and not row["rollbacks"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(guarded(main, ValueError))
