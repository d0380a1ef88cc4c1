"""python -m ssd.simulate: simulates plain decoding, speculation and SSD on hardware that is not at hand."""

import argparse
import json
import math
import sys
from dataclasses import asdict
from pathlib import Path

from ssd.cli.command import Parser, check_writable, guarded, whole, written
from ssd.cli.markdown import table

from . import announcement, paper, questions
from .fit import Fit, fit
from .hardware import GPUS, gpu
from .models import MODELS, model
from .published import CONTEXT, PAIRS, WORKLOADS
from .roofline import Constants, Roofline
from .serving import Load
from .statistics import Statistics, from_run, published

TABLES = ("paper", "announcement", "hardware")
QUESTIONS = ("best", "gpu", "batch", "replicas")


def parser() -> argparse.ArgumentParser:
    p = Parser(prog="python -m ssd.simulate", description=__doc__, allow_abbrev=False)
    what = p.add_mutually_exclusive_group(required=True)
    what.add_argument("--table", choices=TABLES, help="simulated speeds beside published ones, or the data sheets")
    what.add_argument(
        "--ask", choices=QUESTIONS,
        help="best: K, fan-out and draft of a pair; gpu: whether one more GPU is for the draft or for the target; "
        "batch: the batch at which SSD stops paying; replicas: latencies under random arrivals",
    )  # fmt: skip
    what.add_argument("--measured", metavar="F", help="compare with the speeds in F, written by bench.decode --json")
    p.add_argument("--json", metavar="F", help="write rows, constants and the answer to this file")
    p.add_argument(
        "--rounds", type=whole(1), default=10000, metavar="N", help="rounds of each simulated run (%(default)s)"
    )
    p.add_argument("--seed", type=whole(0), default=0, metavar="N", help="the same seed gives the same result (0)")
    p.add_argument("--set", action="append", default=[], metavar="NAME=X", help="replace a fitted constant")
    p.add_argument("--speeds-only", action="store_true", help="fit on speeds alone, not on published times of passes")
    q = p.add_argument_group("the pair")
    q.add_argument("--target", default="llama-3.1-70b", help=f"{', '.join(MODELS)}, or a folder (%(default)s)")
    q.add_argument("--draft", default="llama-3.2-1b", help="a draft, or several with commas (%(default)s)")
    q.add_argument("--gpu", default="H100", help=f"{', '.join(GPUS)} (%(default)s)")
    q.add_argument("--gpus", type=whole(1), default=4, metavar="N", help="GPUs of the target; SSD has one more (4)")
    q.add_argument("--batch", type=whole(1), metavar="N", help="sequences that decode together (1; 4 with replicas)")
    q.add_argument("--context", type=above_zero, default=CONTEXT, metavar="N", help="mean tokens of a sequence (400)")
    q.add_argument("-k", type=whole(1, 63), metavar="N", help="tokens of a speculation (the best up to 12)")
    q.add_argument("--branches", type=whole(1, 512), metavar="N", help="outcomes to prepare for in all (the best)")
    q.add_argument("--workload", choices=WORKLOADS, help="workload of a published pair (the mean of the four)")
    q.add_argument("--acceptance", metavar="A", help="chance that a token is accepted; for several drafts with commas")
    q.add_argument("--exponent", type=above_zero, metavar="R", help="exponent of the law of hits (fitted)")
    q.add_argument("--stats", metavar="F", help="take acceptance and hit rate from F, written by ssd.run --json")
    r = p.add_argument_group("replicas")
    r.add_argument("--rate", type=above_zero, default=8.0, metavar="X", help="requests a second (%(default)g)")
    r.add_argument("--replicas", default="1,2,4", metavar="N,...", help="numbers of replicas (%(default)s)")
    r.add_argument("--requests", type=whole(1), default=400, metavar="N", help="requests that arrive (%(default)s)")
    r.add_argument("--prompt", type=whole(1), default=256, metavar="N", help="tokens of a prompt (%(default)s)")
    r.add_argument("--answer", type=whole(1), default=256, metavar="N", help="tokens of an answer (%(default)s)")
    r.add_argument("--max-batch", type=whole(1), default=16, metavar="N", help="largest batch of a replica (16)")
    return p


def above_zero(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"got {text}, wanted a number above 0")
    return value


def statistics(args, found: Fit, draft: str, number: int) -> Statistics:
    """The Statistics of a draft. number: its place among those of --draft."""
    exponent = found.exponent if args.exponent is None else args.exponent
    if args.stats:
        if "," in args.draft:
            raise ValueError(f"--stats: got one run for {args.draft}, wanted one draft; or give --acceptance for each")
        return from_run(args.stats, exponent)
    if args.acceptance is None:
        known = published(found, args.target, draft, args.workload)
        return Statistics(known.acceptance, exponent, known.source)
    try:
        values = [float(x) for x in args.acceptance.split(",")]
    except ValueError:
        values = []
    if len(values) != len(args.draft.split(",")) or not all(0 <= a < 1 for a in values):
        raise ValueError(f"--acceptance: got {args.acceptance}, wanted a number in [0, 1) for each draft, with commas")
    return Statistics(values[number], exponent, "--acceptance")


def ask(args, found: Fit, constants: Constants) -> dict:
    """The report on a question: rows, columns, the answer in a sentence, and the statistics that it rests on."""
    names = args.draft.split(",")
    target = model(args.target)
    drafts = {}
    for i, name in enumerate(names):
        shape = model(name, "--draft")
        if shape.vocab != target.vocab:
            raise ValueError(f"--draft: {name} has {shape.vocab} tokens, wanted the {target.vocab} of {args.target}")
        times = Roofline(gpu(args.gpu), target, shape, constants, args.gpus, args.context)
        drafts[name] = times, statistics(args, found, name, i)
    times, stats = next(iter(drafts.values()))
    if not times.fits(args.batch or 1) and args.ask != "gpu":
        raise ValueError(f"--gpus: {args.target} does not fit into {args.gpus} {args.gpu}; give more")
    if args.ask == "best":
        rows, answer = questions.ask_best(drafts, args.batch or 1, args.k, args.branches)
    elif args.ask == "gpu":
        rows, answer = questions.ask_gpu(times, stats, args.batch or 1, args.k, args.branches)
    elif args.ask == "batch":
        rows, answer = questions.ask_batch(times, stats, args.k, args.branches)
    else:
        load = Load(args.rate, args.requests, args.prompt, args.answer, args.max_batch)
        rows, answer = questions.ask_replicas(
            times, stats, load, counts(args.replicas), args.batch or 4, args.k, args.branches, args.seed
        )
    known = {name: asdict(s) for name, (_, s) in drafts.items()}
    return {"rows": rows, "columns": columns(rows), "answer": answer, "statistics": known}


def counts(text: str) -> list[int]:
    try:
        values = [int(x) for x in text.split(",")]
    except ValueError:
        values = [0]
    if min(values) < 1:
        raise ValueError(f"--replicas: got {text}, wanted numbers of at least 1, with commas")
    return values


def columns(rows: list[dict]) -> list[str]:
    """All keys of the rows, in order of first appearance."""
    return list(dict.fromkeys(key for row in rows for key in row))


def hardware() -> list[dict]:
    return [
        {"GPU": g.name, "quantity": name, "value": getattr(g, name), "source": g.source[name]}
        for g in GPUS.values()
        for name in g.source
    ]


def run(args) -> int:
    if args.json:
        check_writable("--json", args.json)
    found = fit(steps=None) if args.speeds_only else fit()
    constants = found.constants.replaced(args.set)
    report = {"command": "python -m ssd.simulate " + " ".join(sys.argv[1:]), "constants": asdict(constants)}
    report |= {"exponent": found.exponent, "acceptance": {PAIRS[n].name: dict(zip(WORKLOADS, a, strict=True))
               for n, a in found.acceptance.items()}}  # fmt: skip
    fitted = Fit(constants, found.acceptance, found.shift, found.slope, found.exponent)
    if args.table == "hardware":
        rows = hardware()
        report |= {"rows": rows, "columns": columns(rows)}
    elif args.table == "announcement":
        rows = announcement.rows(fitted, args.rounds)
        report |= {"rows": rows, "columns": announcement.COLUMNS}
    elif args.table == "paper":
        rows = paper.rows(fitted, args.rounds)
        report |= {"rows": rows, "columns": paper.COLUMNS, "passes": paper.passes(fitted)}
        report["summary"] = paper.summary(rows)
    elif args.measured:
        from . import measured  # needs torch

        report = {"command": report["command"], "rows": measured.rows(args.measured, args.rounds, args.seed)}
        report |= {"columns": measured.COLUMNS, "answer": measured.verdict(report["rows"])}
    else:
        report |= ask(args, fitted, constants)
    show(report)
    if args.json:
        text = json.dumps(report, indent=1) + "\n"
        written("--json", args.json, lambda path: Path(path).write_text(text))
    return 0


def show(report: dict) -> None:
    print(table(report["rows"], report.pop("columns")))
    for name in ("passes", "summary"):
        if name in report:
            print("\n" + table(report[name], columns(report[name])))
    if "answer" in report:
        print("\n" + report["answer"])
    if c := report.get("constants"):
        print(
            f"\nConstants: bandwidth {c['bandwidth']:.3f} and matrix {c['matrix']:.3g} of the peak, a target pass "
            f"{1e3 * c['host']:.2f} ms and a draft pass {1e3 * c['draft_host']:.2f} ms beside their kernels; "
            f"exponent of hits {report['exponent']:.3f}."
        )


def main(argv: list[str] | None = None) -> int:
    """Exit code: 0 done, 2 bad input (one sentence on stderr), 130 interrupted."""
    return guarded(lambda: run(parser().parse_args(argv)), ValueError)


if __name__ == "__main__":
    sys.exit(main())
