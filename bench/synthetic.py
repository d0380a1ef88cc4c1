"""Decoding with random weights and a synthetic acceptance: `python -m bench.synthetic --target Llama-8B --json F`.

The work of a round is real: the forward passes of target and draft, sampling, and verification, on a cache of the given
length. The number of accepted tokens, and whether the outcome was predicted, are drawn at random, since random weights
never agree. So tokens per second are those of a pair of models with that acceptance, and no text is made.
`rows`: mode, graphs, tokens, rounds, hits, tokens_per_second, round_ms, speedup (over ar in the same run).
Modes: ar has one row a pass; sd has k steps of the draft, then a verification of k + 1 rows; ssd has the same
verification beside k steps of the draft over all branches, with the lanes on two streams or threads, and k more steps
after a miss.
"""

import argparse
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import torch

from ssd import kernels
from ssd.cli.command import guarded
from ssd.model import Llama, LlamaConfig
from ssd.model.batch import Batch
from ssd.model.config import Rope
from ssd.model.kv_cache import KVCache
from ssd.model.memory import Arena
from ssd.model.rope import rope_tables
from ssd.model.weights import BLOCK, LayerWeights, Weights, pack_rows

from . import results
from .cases.attention import forest_mask
from .shapes import MODELS, PAGE, Model

TINY = {m.name: m for m in (Model("tiny", 64, 4, 2, 64, 96, 2, 256), Model("tiny draft", 32, 1, 1, 64, 48, 1, 256))}
SHAPES = MODELS | TINY

SETTINGS = (torch.float32, torch.int32, torch.float32, torch.float32, torch.int64)  # dtypes of temperature to seeds


def random_llama(m: Model, device: str, positions: int) -> Llama:
    """A Llama of this shape with random weights in bfloat16; no file is read or downloaded."""
    config = LlamaConfig(
        m.vocab, m.hidden, m.inner, m.depth, m.heads, m.kv_heads, m.head_dim, positions, 1e-5, Rope(), False, False,
        False, None, (),
    )  # fmt: skip
    arena = Arena()
    norm_dtype = torch.float32 if device == "cpu" else torch.bfloat16

    def packed(n, k):
        def rows(i, j):
            return torch.randn(j - i, k, device=device) * k**-0.5

        return pack_rows(rows, n, lambda w: kernels.pack_linear(w, "bf16"), arena)

    def layer():
        inner = -(-m.inner // BLOCK) * BLOCK
        qkv, hidden = m.layers["qkv"]
        norms = [torch.ones(hidden, dtype=norm_dtype, device=device) for _ in range(2)]
        return LayerWeights(
            norms[0], packed(qkv, hidden), None, packed(*m.layers["o"]), None, norms[1],
            packed(2 * inner, hidden), None, packed(hidden, inner), None,
        )  # fmt: skip

    embedding = torch.randn(m.vocab, m.hidden, device=device).bfloat16()
    norm = torch.ones(m.hidden, dtype=norm_dtype, device=device)
    weights = Weights(embedding, [layer() for _ in range(m.depth)], norm, packed(m.vocab, m.hidden))
    return Llama(config, weights, *(t.to(device) for t in rope_tables(config)), "bf16")


class Pass:
    """A forward pass of fixed shape over one sequence, whose prefix length and tokens are set in place; optionally a
    CUDA graph."""

    def __init__(self, model: Llama, kv: KVCache, offsets, depths, mask=None, graphs: bool = False):
        device = model.cos.device
        rows = len(offsets)
        self.model = model
        self.kv = kv
        self.graph = None
        self.offsets, self.depths = (torch.tensor(x, device=device) for x in (offsets, depths))
        self.batch = Batch(
            ids=torch.zeros(rows, dtype=torch.int64, device=device),
            positions=self.depths.int(),
            slots=self.offsets.clone(),
            row_offsets=torch.tensor([0, rows], dtype=torch.int32, device=device),
            prefix_lens=torch.zeros(1, dtype=torch.int32, device=device),
            page_table=torch.arange(kv.num_pages, dtype=torch.int32, device=device)[None],
            logit_rows=torch.arange(rows, device=device),
            mask=mask,
        )
        if graphs:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):  # compiles the kernels
                for _ in range(2):
                    model.forward(self.batch, kv)
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, stream=stream):
                self.logits = model.forward(self.batch, kv)

    def __call__(self, prefix: int, ids: torch.Tensor | None = None) -> torch.Tensor:
        """The logits of the rows behind a prefix."""
        self.batch.prefix_lens.fill_(prefix)
        self.batch.slots.copy_(self.offsets + prefix)
        self.batch.positions.copy_(self.depths + prefix)
        if ids is not None:
            self.batch.ids.copy_(ids)
        if self.graph is None:
            return self.model.forward(self.batch, self.kv)
        self.graph.replay()
        return self.logits


def settings(rows: int, device) -> list[torch.Tensor]:
    """The arguments of kernels.sample for each row: temperature 1, no filters, seeds."""
    temperature, top_k, top_p, min_p, seeds = (torch.zeros(rows, dtype=t, device=device) for t in SETTINGS)
    return [temperature.fill_(1), top_k, top_p.fill_(1), min_p, seeds]


class Draft:
    def __init__(self, model: Llama, tokens: int, k: int, branches: int, graphs: bool):
        self.k = k
        self.device = model.cos.device
        kv = KVCache(model.config.num_layers, tokens // PAGE, PAGE, model.config.num_kv_heads, model.config.head_dim,
                     torch.bfloat16, self.device)  # fmt: skip
        self.one = Pass(model, kv, [0], [0], None, graphs)
        self.forest = []
        for step in range(k):
            offsets = [step * branches + m for m in range(branches)]
            mask = forest_mask(branches, step + 1).to(self.device)
            self.forest.append(Pass(model, kv, offsets, [step] * branches, mask, graphs))
        self.settings = {n: settings(n, self.device) for n in {1, branches}}

    def sample(self, logits: torch.Tensor, position: int) -> torch.Tensor:
        positions = torch.full((len(logits),), position, dtype=torch.int64, device=self.device)
        return kernels.sample(logits, *self.settings[len(logits)], positions, False)[0]

    def chain(self, prefix: int) -> list[torch.Tensor]:
        tokens = []
        ids = None
        for step in range(self.k):
            tokens.append(self.sample(self.one(prefix + step, ids), prefix + step))
            ids = tokens[-1]
        return tokens

    def branches(self, prefix: int) -> None:
        ids = None
        for step, forward in enumerate(self.forest):
            ids = self.sample(forward(prefix, ids), prefix + step)


class Decoder:
    def __init__(self, target: Model, draft: Model, device: str, prefix: int, tokens: int, k: int, branches: int,
                 graphs: bool):  # fmt: skip
        torch.manual_seed(0)
        room = ((prefix + tokens + max(k + 1, branches * k) + k) // PAGE + 1) * PAGE
        self.device = device
        self.prefix = prefix
        self.tokens = tokens
        self.k = k
        model, drafting = (random_llama(m, device, room) for m in (target, draft))
        kv = KVCache(target.depth, room // PAGE, PAGE, target.kv_heads, target.head_dim, torch.bfloat16, device)
        kv.k.normal_(), kv.v.normal_()
        rows = list(range(k + 1))
        self.plain = Pass(model, kv, [0], [0], None, graphs)
        self.verification = Pass(model, kv, rows, rows, None, graphs)
        self.draft = Draft(drafting, room, k, branches, graphs)
        for cache in {id(p.kv): p.kv for p in (self.draft.one, *self.draft.forest)}.values():
            cache.k.normal_(), cache.v.normal_()
        self.settings = settings(1, device)
        self.chain = (
            torch.tensor([0, k + 1], dtype=torch.int32, device=device),
            torch.arange(-1, k - 1, dtype=torch.int8, device=device)[None],
        )
        self.streams = [torch.cuda.Stream() for _ in range(2)] if device != "cpu" else [None, None]
        self.lane = ThreadPoolExecutor(1)  # thread of the draft

    def on(self, stream):
        return torch.cuda.stream(stream) if stream else nullcontext()

    def wait(self) -> None:
        if self.device != "cpu":
            torch.cuda.synchronize()

    def position(self, prefix: int) -> torch.Tensor:
        return torch.full((1,), prefix, dtype=torch.int64, device=self.device)

    def verify(self, prefix: int, drafted: torch.Tensor) -> None:
        ids = torch.cat([drafted.new_zeros(1), drafted])
        logits = self.verification(prefix, ids)
        offsets, parents = self.chain
        done = kernels.verify_coupled(
            logits, offsets, drafted[None].int(), parents, *self.settings, self.position(prefix)
        )
        done.accepted.tolist()  # waits until the host knows the outcome

    def ar(self, acceptance: float, hit_rate: float, tokens: int) -> tuple[int, int, int]:
        for i in range(tokens):
            logits = self.plain(self.prefix + i)
            kernels.sample(logits, *self.settings, self.position(self.prefix + i), False)[0].tolist()
        return tokens, tokens, 0

    def accepted(self, rng: random.Random, acceptance: float) -> int:
        n = 0
        while n < self.k and rng.random() < acceptance:
            n += 1
        return n

    def sd(self, acceptance: float, hit_rate: float, tokens: int) -> tuple[int, int, int]:
        rng = random.Random(0)
        made = 0
        rounds = 0
        while made < tokens - self.k:
            drafted = torch.cat(self.draft.chain(self.prefix + made))
            self.verify(self.prefix + made, drafted)
            made = made + self.accepted(rng, acceptance) + 1
            rounds += 1
        return made, rounds, 0

    def branch_lane(self, prefix: int) -> None:
        with self.on(self.streams[1]):
            self.draft.branches(prefix)
            if self.streams[1]:
                self.streams[1].synchronize()

    def ssd(self, acceptance: float, hit_rate: float, tokens: int) -> tuple[int, int, int]:
        rng = random.Random(0)
        made = 0
        rounds = 0
        hits = 0
        drafted = torch.cat(self.draft.chain(self.prefix))
        self.wait()
        while made < tokens - self.k:
            drafting = self.lane.submit(self.branch_lane, self.prefix + made)
            with self.on(self.streams[0]):
                self.verify(self.prefix + made, drafted)
            drafting.result()
            made = made + self.accepted(rng, acceptance) + 1
            rounds += 1
            if rng.random() < hit_rate:
                hits += 1
            else:
                drafted = torch.cat(self.draft.chain(self.prefix + made))
                self.wait()
        return made, rounds, hits

    def row(self, mode: str, acceptance: float, hit_rate: float) -> dict:
        run = getattr(self, mode)
        run(acceptance, hit_rate, min(self.tokens, 2 * self.k + 2))  # compiles and warms up
        self.wait()
        begin = time.perf_counter()
        tokens, rounds, hits = run(acceptance, hit_rate, self.tokens)
        self.wait()
        seconds = time.perf_counter() - begin
        return {
            "mode": mode,
            "tokens": tokens,
            "rounds": rounds,
            "hits": hits,
            "tokens_per_second": tokens / seconds,
            "round_ms": 1e3 * seconds / rounds,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=SHAPES, default="Llama-8B", help="shape of the target (%(default)s)")
    parser.add_argument("--draft", choices=SHAPES, default="Llama-1B", help="shape of the draft (%(default)s)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="device (%(default)s)")
    parser.add_argument("--modes", default="ar,sd,ssd", help="modes (%(default)s)")
    parser.add_argument("--prefix", type=int, default=1024, help="tokens in the cache at first (%(default)s)")
    parser.add_argument("--tokens", type=int, default=256, help="tokens to decode (%(default)s)")
    parser.add_argument("-k", type=int, default=4, help="tokens of a speculation (%(default)s)")
    parser.add_argument("--branches", type=int, default=16, help="outcomes that ssd prepares for (%(default)s)")
    parser.add_argument("--acceptance", type=float, default=0.75, help="chance that a drafted token is accepted (0.75)")
    parser.add_argument("--hit-rate", type=float, default=0.8, help="chance that the outcome was predicted (0.8)")
    parser.add_argument("--graphs", action="store_true", help="run forward passes as CUDA graphs")
    parser.add_argument("--json", metavar="FILE", help="write the results to this file")
    args = parser.parse_args()
    decoder = Decoder(
        SHAPES[args.target], SHAPES[args.draft], args.device, args.prefix, args.tokens, args.k, args.branches,
        args.graphs,
    )  # fmt: skip
    rows = []
    for mode in args.modes.split(","):
        row = {"target": args.target, "draft": args.draft, "device": args.device, "graphs": args.graphs}
        rows.append(row | {"prefix": args.prefix, "k": args.k, "branches": args.branches}
                    | {"acceptance": args.acceptance, "hit_rate": args.hit_rate}
                    | decoder.row(mode, args.acceptance, args.hit_rate))  # fmt: skip
        base = rows[0]["tokens_per_second"] if rows[0]["mode"] == "ar" else None
        rows[-1]["speedup"] = base and rows[-1]["tokens_per_second"] / base
        results.write(args.json, rows)  # rows are kept even if a later mode fails
    columns = "mode device graphs k branches acceptance hit_rate tokens rounds hits tokens_per_second round_ms speedup"
    print(results.table(rows, columns.split()))


if __name__ == "__main__":
    sys.exit(guarded(main, ValueError))
