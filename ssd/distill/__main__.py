"""python -m ssd.distill: trains a draft for any target; with --record, writes the answers that a draft learns from."""

import argparse
import ctypes
import logging
import sys
from importlib.util import find_spec

from ssd.cli.command import BadInput, Parser, check_writable, guarded, stop_at_once, threads

from .train import TrainOptions

TRAINING = (
    ("steps", int, "number of optimiser steps"),
    ("batch_tokens", int, "tokens of a pass, padding included"),
    ("accumulate", int, "passes of an optimiser step"),
    ("learning_rate", float, "peak learning rate"),
    ("final_rate", float, "share of the peak that is left at the end"),
    ("warmup", int, "steps until the peak"),
    ("weight_decay", float, "weight decay of matrices"),
    ("clip", float, "largest norm of a gradient"),
    ("own_steps", int, "steps on its own features that a feature draft trains on"),
    ("step_decay", float, "weight of such a step relative to the one before"),
    ("feature_loss", float, "weight of the smooth-L1 loss between the draft's feature and the target's next one"),
)


def integers(text: str) -> tuple[int, ...]:
    return tuple(int(x) for x in text.split(",")) if text else ()


def numbers(text: str) -> list[float]:
    return [float(x) for x in text.split(",")]


def parser() -> argparse.ArgumentParser:
    p = Parser(prog="python -m ssd.distill", description=__doc__, allow_abbrev=False)
    p.add_argument("data", nargs="+", help="recorded .npz files, .jsonl files of text, or folders of either")
    p.add_argument("--target", help="folder or hub id of the model (the default target)")
    p.add_argument("--device", default="cpu", help="device on which torch computes (%(default)s)")
    p.add_argument("--threads", metavar="N|CORES", help="a number of threads, or cores such as 0,2 or 4-7 (all cores)")
    p.add_argument("--seed", type=int, default=0, metavar="N", help="seed of every random choice (%(default)s)")
    p.add_argument(
        "--feature-layers",
        type=integers,
        default=(),
        metavar="L,...",
        help="layers of the target whose output feeds the draft (none)",
    )
    p.add_argument("--cache", default="features", metavar="DIR", help="folder of the target's features (%(default)s)")
    r = p.add_argument_group("recording")
    r.add_argument("--record", metavar="DIR", help="answer the prompts of .jsonl files and write part_*.npz here")
    r.add_argument("--engine", choices=("ssd", "torch"), default="ssd", help="engine that answers (%(default)s)")
    r.add_argument("--dtype", choices=("bf16", "int8", "fp32"), default="bf16", help="weights of engine ssd (bf16)")
    r.add_argument("--record-batch", type=int, default=64, metavar="N", help="sequences in a batch (%(default)s)")
    r.add_argument("--max-tokens", type=int, default=256, metavar="N", help="longest answer, in tokens (%(default)s)")
    r.add_argument(
        "--temperatures",
        type=numbers,
        default=[0.0, 0.6, 1.0],
        metavar="X,...",
        help="temperatures that the prompts take in turn (0,0.6,1)",
    )
    r.add_argument("--part", type=int, default=512, metavar="N", help="prompts in a file (%(default)s)")
    d = p.add_argument_group("the draft")
    d.add_argument(
        "--out",
        default="draft",
        metavar="DIR",
        help="folder for the draft and for the state of the run, which a second call resumes (%(default)s)",
    )
    d.add_argument(
        "--layers",
        type=integers,
        default=(),
        metavar="L,...",
        help="layers of the target that the draft starts from (the last one with --feature-layers; without, the first "
        "four and the last two)",
    )
    d.add_argument("--from", dest="begin", metavar="DIR", help="start from this draft; the data may differ")
    d.add_argument("--hidden-size", type=int, metavar="N", help="hidden size of a narrower draft (the target's)")
    d.add_argument(
        "--draft-vocab", type=int, default=8192, metavar="N", help="tokens that the draft can propose (%(default)s)"
    )
    t = p.add_argument_group("training")
    o = TrainOptions()
    for name, kind, text in TRAINING:
        t.add_argument(
            f"--{name.replace('_', '-')}",
            type=kind,
            default=getattr(o, name),
            metavar="X",
            help=f"{text} (%(default)s)",
        )
    t.add_argument(
        "--freeze-head", dest="train_head", action="store_false", help="keep the target's output head unchanged"
    )
    t.add_argument("--fp32", action="store_true", help="compute products in float32 instead of bfloat16")
    t.add_argument(
        "--held-out", type=float, default=0.02, metavar="X", help="share of prompts to evaluate on (%(default)s)"
    )
    t.add_argument("--held-max", type=int, default=64, metavar="N", help="most sequences to evaluate on (%(default)s)")
    t.add_argument("--depth", type=int, default=6, metavar="N", help="steps of the draft to evaluate (%(default)s)")
    t.add_argument(
        "--evaluate-every",
        type=int,
        default=200,
        metavar="N",
        help="steps between checkpoints, each with an evaluation (%(default)s)",
    )
    p.add_argument("--minutes", type=float, metavar="X", help="stop after this time; the same call resumes the run")
    t.add_argument("--plot", metavar="FILE", help="draw the training curves (needs matplotlib)")
    e = p.add_argument_group("evaluation")
    e.add_argument(
        "--evaluate", metavar="DRAFT", help="measure a draft's acceptance on recorded text, by kind and temperature"
    )
    e.add_argument("--json", metavar="FILE", help="write the figures to this file")
    return p


def keep_freed_memory() -> None:
    """Tells glibc to keep what torch frees; pages that it returned would fault in again at the next operator."""
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(-4, 0)  # M_MMAP_MAX: no block gets a mapping of its own
        mallopt(-1, -1)  # M_TRIM_THRESHOLD: never trim


def check(args) -> None:
    for name in ("depth", "held_max", "evaluate_every", "part", "record_batch", "max_tokens"):
        if (got := getattr(args, name)) < 1:
            raise BadInput(f"--{name.replace('_', '-')}: got {got}, wanted 1 or more")
    if args.minutes is not None and not args.minutes > 0:
        raise BadInput(f"--minutes: got {args.minutes}, wanted more than 0")
    if args.record and args.engine == "ssd" and args.device != "cpu":
        raise BadInput(f"--device: got {args.device}, but engine ssd records on the CPU; add --engine torch")
    for name in ("plot", "json"):
        if path := getattr(args, name):
            check_writable(f"--{name}", path)
    if args.plot and find_spec("matplotlib") is None:
        raise BadInput("--plot needs matplotlib: pip install matplotlib")


def run(args) -> int:
    check(args)
    import torch

    from ssd.runtime.devices.threads import cores_of

    cores = threads(args.threads)
    if cores is not None:
        torch.set_num_threads(len(cores_of(cores)))
    if args.record:
        from .record import run as run_record

        return run_record(args, cores)
    from . import session

    return session.run_evaluate(args) if args.evaluate else session.run_train(args)


def main(argv: list[str] | None = None) -> int:
    """Exit code: 0 done, 2 bad input (one sentence on stderr), 130 interrupted."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    return guarded(lambda: run(parser().parse_args(argv)), ValueError, ImportError)


if __name__ == "__main__":
    stop_at_once()
    keep_freed_memory()
    sys.exit(main())
