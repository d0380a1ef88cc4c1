"""How often the draft has prepared for an outcome: `python -m bench.hit_rate --data F.jsonl --json F`.

`rows`: workload, temperature, verify (coupled, rejection, saguaro), fan_out (bonus tokens at every node), tree_width,
hit_rate (in lockstep, where the draft always finishes; the first round of each answer does not count),
hit_rate_realtime (with the lanes side by side, each on its core), tokens_per_second (in real time), accepted_length (in
lockstep), draft_overhead (multiply-adds of the draft's linear layers by those of the target's).
"""

import argparse
import itertools
import sys

from ssd.cli.command import guarded, listed, whole

from . import plots, results
from .workloads import check_names, workloads_of

VERIFY = {
    "coupled": {},
    "rejection": {"verify": "rejection"},
    "saguaro": {"verify": "rejection", "saguaro": 0.5},
}


def weights(model) -> int:
    """The number of weights in all linear layers, which is the multiply-adds of a row."""
    c = model.config
    heads = (c.num_heads + 2 * c.num_kv_heads) * c.head_dim
    first = c.hidden_size if model.hidden_norm is not None else 0  # a feature draft has twice as many inputs
    layer = c.hidden_size * heads + c.num_heads * c.head_dim * c.hidden_size + 3 * c.hidden_size * c.intermediate_size
    return c.num_layers * layer + first * heads + c.hidden_size * model.vocab


class Pair:
    def __init__(self, target: str | None, draft: str | None, dtype: str, draft_dtype: str | None, device: str):
        from ssd.model import Llama, Tokenizer, resolve
        from ssd.runtime.devices.placement import device_of
        from ssd.runtime.factory import load_draft
        from ssd.runtime.options import SpeculationOptions

        self.device = str(device_of(device))
        folder = resolve(target)
        self.model = Llama.load(folder, dtype, device=self.device)
        self.tokenizer = Tokenizer(folder)
        self.draft = load_draft(
            SpeculationOptions(mode="ssd", draft=draft, draft_dtype=draft_dtype), str(folder), self.model
        )
        self.ratio = weights(self.draft) / weights(self.model)

    def run(self, ids, params, **options) -> tuple[dict, float | None]:
        """(statistics of SSD over the prompts, one at a time; draft_overhead)."""
        from ssd import LLM

        options |= {"mode": "ssd", "max_batch": 1, "device": self.device}
        llm = LLM.from_model(self.model, self.tokenizer, draft=self.draft, **options)
        for prompt, param in zip(ids, params, strict=True):
            llm.generate([prompt], param)
        stats = llm.stats()
        lanes = llm.engine.speculator
        overhead = lanes.lane.runner.rows * self.ratio / max(lanes.counts.verified_rows, 1) if lanes.lane else None
        llm.close()
        return stats, overhead


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", help="folder or id of the model (the default target)")
    parser.add_argument("--draft", help="folder or id of the draft (the target's own)")
    parser.add_argument("--dtype", default="bf16", help="precision of the target (%(default)s)")
    parser.add_argument("--draft-dtype", help="precision of the draft (int8; on a GPU bf16)")
    parser.add_argument("--device", default="cpu", help="device of target and draft: cpu, cuda or cuda:N (%(default)s)")
    parser.add_argument("--data", nargs="+", metavar="FILE.jsonl", help="files of prompts (those in bench/prompts)")
    parser.add_argument("--limit", type=whole(1), default=10, help="prompts of each file (%(default)s)")
    parser.add_argument("--max-tokens", type=whole(1), default=96, help="tokens of each answer (%(default)s)")
    parser.add_argument("-k", type=int, default=4, help="tokens of a branch (%(default)s)")
    parser.add_argument("--fan-out", type=listed(int), default="1,2,4,8,16", help="bonus tokens a node (%(default)s)")
    parser.add_argument(
        "--tree-width", type=listed(int), default="1", help="branches below a bonus token (%(default)s)"
    )
    parser.add_argument("--temperatures", type=listed(float), default="0,0.6,1.0", help="temperatures (%(default)s)")
    parser.add_argument("--verify", default="coupled", help=f"some of {', '.join(VERIFY)} (%(default)s)")
    parser.add_argument("--no-realtime", action="store_true", help="measure in lockstep only")
    parser.add_argument("--json", metavar="FILE", help="write the results to this file")
    args = parser.parse_args(argv)

    from ssd import SamplingParams

    texts = workloads_of(parser, args)
    check_names(parser, "--verify", args.verify.split(","), VERIFY)
    pair = Pair(args.target, args.draft, args.dtype, args.draft_dtype, args.device)
    rows = []
    swept = (args.temperatures, args.verify.split(","), args.fan_out, args.tree_width)
    for workload, t, verify, f, width in itertools.product(texts, *swept):
        ids = [pair.tokenizer.encode_chat([{"role": "user", "content": p}]) for p in texts[workload]]
        params = [SamplingParams(temperature=t, seed=n, max_tokens=args.max_tokens) for n in range(len(ids))]
        options = {"k": args.k, "fan_out": f, "tree_width": width, "max_model_len": 2048, **VERIFY[verify]}
        stats, overhead = pair.run(ids, params, lockstep=True, **options)
        live = {} if args.no_realtime else pair.run(ids, params, **options)[0]
        row = {"workload": workload, "temperature": t, "verify": verify, "fan_out": f, "tree_width": width}
        row |= {"hit_rate": stats["hit_rate"], "hit_rate_realtime": live.get("hit_rate")}
        row |= {"accepted_length": stats["mean_accepted_length"], "tokens_per_second": live.get("tokens_per_second")}
        row |= {"draft_overhead": overhead}
        rows.append(row)
        print(results.table(rows[-1:], list(row)).splitlines()[-1], file=sys.stderr, flush=True)
        results.write(args.json, rows)
    plots.beside(args.json, plots.hit_rate, rows)
    print(results.table(rows, list(rows[0])))
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main, ValueError))
