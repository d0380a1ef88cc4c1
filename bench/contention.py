"""Decoding beside another busy process: `python -m bench.contention --json F`.

Answers one prompt alone and beside a process of its own that keeps one core busy, pinned nowhere, in turn. `rows`:
mode, dtype, alone and beside (tokens per second of decoding, medians over the rounds), kept (their ratio).
"""

import argparse
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager

from ssd.cli.command import guarded, whole

from . import results
from .workloads import check_names

MODES = ("ar", "sd", "ssd")
PROMPT = "Explain in plain words why the sky is blue."
SETTLE = 0.3  # seconds until the busy process is busy


@contextmanager
def busy_process():
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        time.sleep(SETTLE)
        yield process
    finally:
        process.kill()
        process.wait()


def speed(llm, max_tokens: int) -> float:
    """Tokens per second of decoding."""
    from ssd import SamplingParams

    m = llm.metrics
    tokens, seconds = m.decode_tokens, m.decode_seconds
    llm.generate(PROMPT, SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True))
    return (m.decode_tokens - tokens) / (m.decode_seconds - seconds)


def measure(llm, rounds: int, max_tokens: int) -> dict:
    speed(llm, max_tokens)  # warm
    alone, beside = [], []
    for _ in range(rounds):
        alone.append(speed(llm, max_tokens))
        with busy_process():
            beside.append(speed(llm, max_tokens))
    alone, beside = statistics.median(alone), statistics.median(beside)
    return {"alone": alone, "beside": beside, "kept": beside / alone}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", help="folder or id of the model (the default target)")
    parser.add_argument("--draft", help="folder or id of the draft (the target's own)")
    parser.add_argument("--modes", default=",".join(MODES), help="modes (%(default)s)")
    parser.add_argument("--dtypes", default="bf16", help="precisions of the target (%(default)s)")
    parser.add_argument("--rounds", type=whole(1), default=9, help="answers alone, and beside (%(default)s)")
    parser.add_argument("--max-tokens", type=whole(2), default=96, help="tokens of each answer (%(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write the results to this file")
    args = parser.parse_args(argv)
    check_names(parser, "--modes", args.modes.split(","), MODES)

    from ssd import LLM

    rows = []
    for mode, dtype in [(m, d) for m in args.modes.split(",") for d in args.dtypes.split(",")]:
        draft = None if mode == "ar" else args.draft
        llm = LLM(args.target, dtype, mode=mode, draft=draft, max_batch=1, max_model_len=1024)
        rows.append({"mode": mode, "dtype": dtype} | measure(llm, args.rounds, args.max_tokens))
        llm.close()
        results.write(args.json, rows)
    print(results.table(rows, list(rows[0])))
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main, ValueError))
