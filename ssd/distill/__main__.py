"""python -m ssd.distill: a draft for any target; with --record, the target's answers to learn from."""

import argparse
import ctypes
import logging
import sys
from importlib.util import find_spec

from ssd.cli.command import BadInput, Parser, check_writable, guarded, stop_at_once, threads

from .train import TrainOptions

TRAINING = (
    ("steps", int, "optimiser steps in all"),
    ("batch_tokens", int, "tokens of a pass, padding included"),
    ("accumulate", int, "passes a step"),
    ("learning_rate", float, "at its greatest"),
    ("final_rate", float, "share of it that is left at the end"),
    ("warmup", int, "steps up to it"),
    ("weight_decay", float, "of matrices"),
    ("clip", float, "longest gradient"),
    ("own_steps", int, "own steps of a feature draft in training"),
    ("step_decay", float, "weight of each over that of the one before"),
    ("feature_loss", float, "weight of smooth-L1 to the target's next feature"),
)


def integers(text: str) -> tuple[int, ...]:
    return tuple(int(x) for x in text.split(",")) if text else ()


def numbers(text: str) -> list[float]:
    return [float(x) for x in text.split(",")]


def parser() -> argparse.ArgumentParser:
    p = Parser(prog="python -m ssd.distill", description=__doc__, allow_abbrev=False)
    p.add_argument("data", nargs="+", help="recorded .npz or text .jsonl files, or folders of them")
    p.add_argument("--target", help="folder or hub id of the model (the default target)")
    p.add_argument("--device", default="cpu", help="where torch computes (%(default)s)")
    p.add_argument("--threads", metavar="N|CORES", help="a number of threads, or cores such as 0,2 or 4-7 (all cores)")
    p.add_argument("--seed", type=int, default=0, metavar="N", help="of every random choice (%(default)s)")
    p.add_argument(
        "--feature-layers", type=integers, default=(), metavar="L,...", help="layers whose output the draft is fed"
    )
    p.add_argument("--cache", default="features", metavar="DIR", help="folder of the target's features (%(default)s)")
    r = p.add_argument_group("recording")
    r.add_argument("--record", metavar="DIR", help="answer the prompts of .jsonl files, and write part_*.npz here")
    r.add_argument("--engine", choices=("ssd", "torch"), default="ssd", help="of recording (%(default)s)")
    r.add_argument("--dtype", choices=("bf16", "int8", "fp32"), default="bf16", help="weights of the engine (bf16)")
    r.add_argument("--record-batch", type=int, default=64, metavar="N", help="sequences at once (%(default)s)")
    r.add_argument("--max-tokens", type=int, default=256, metavar="N", help="of an answer (%(default)s)")
    r.add_argument(
        "--temperatures", type=numbers, default=[0.0, 0.6, 1.0], metavar="X,...", help="taken in turn (0,0.6,1)"
    )
    r.add_argument("--part", type=int, default=512, metavar="N", help="prompts a file (%(default)s)")
    d = p.add_argument_group("the draft")
    d.add_argument(
        "--out",
        default="draft",
        metavar="DIR",
        help="of the draft and of the run's state, which a second call resumes (%(default)s)",
    )
    d.add_argument(
        "--layers",
        type=integers,
        default=(),
        metavar="L,...",
        help="layers of the target to begin with (the last, or the first four and last two)",
    )
    d.add_argument("--from", dest="begin", metavar="DIR", help="begin with this draft, perhaps on other data")
    d.add_argument("--hidden-size", type=int, metavar="N", help="narrower than the target (the target's)")
    d.add_argument(
        "--draft-vocab", type=int, default=8192, metavar="N", help="tokens that the draft can say (%(default)s)"
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
        "--freeze-head", dest="train_head", action="store_false", help="keep the output head as it is in the target"
    )
    t.add_argument("--fp32", action="store_true", help="products in float32 instead of bfloat16")
    t.add_argument(
        "--held-out", type=float, default=0.02, metavar="X", help="share of the prompts to evaluate on (%(default)s)"
    )
    t.add_argument("--held-max", type=int, default=64, metavar="N", help="sequences of them at most (%(default)s)")
    t.add_argument("--depth", type=int, default=6, metavar="N", help="own steps to evaluate (%(default)s)")
    t.add_argument(
        "--evaluate-every",
        type=int,
        default=200,
        metavar="N",
        help="steps between evaluations, and checkpoints (%(default)s)",
    )
    p.add_argument("--minutes", type=float, metavar="X", help="stop after this long; the same call goes on later")
    t.add_argument("--plot", metavar="FILE", help="picture of the curves (needs matplotlib)")
    e = p.add_argument_group("evaluation")
    e.add_argument(
        "--evaluate", metavar="DRAFT", help="acceptance of a draft on recorded text, by kind and temperature"
    )
    e.add_argument("--json", metavar="FILE", help="write the figures here")
    return p


def keep_freed_memory() -> None:
    """glibc keeps what torch frees: pages given back would be faulted in again at the next operator."""
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(-4, 0)  # M_MMAP_MAX: no block in a mapping of its own
        mallopt(-1, -1)  # M_TRIM_THRESHOLD: never trim


def check(args) -> None:
    for name in ("depth", "held_max", "evaluate_every", "part", "record_batch", "max_tokens"):
        if (got := getattr(args, name)) < 1:
            raise BadInput(f"--{name.replace('_', '-')}: got {got}, wanted 1 or more")
    if args.minutes is not None and not args.minutes > 0:
        raise BadInput(f"--minutes: got {args.minutes}, wanted more than 0")
    if args.record and args.engine == "ssd" and args.device != "cpu":
        raise BadInput(f"--device: got {args.device}, wanted --engine torch with it: ssd records on the CPU")
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
