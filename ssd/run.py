"""`python -m ssd.run "prompt"` streams one answer; `--prompts FILE` answers a file and shows its progress."""

import argparse
import json
import sys
import time
from pathlib import Path

from ssd.cli import sampling_options
from ssd.cli.command import BadInput, Parser, asked, check_writable, guarded, printer, stop_at_once, threads, written
from ssd.cli.jsonl import read_lines
from ssd.shared_options import DEFAULT_TARGET, DTYPES, PROMPT_ATTENTION, SPECULATION, check_used


def parser() -> argparse.ArgumentParser:
    p = Parser(prog="python -m ssd.run", description="Answers a prompt with a Llama-class model.", allow_abbrev=False)
    p.add_argument("prompt", nargs="?", help="the user's message")
    p.add_argument(
        "--prompts", metavar="FILE", help="JSON lines, each an object with a `prompt`, instead of one prompt"
    )
    p.add_argument("--raw", action="store_true", help="continue the prompt as it stands, without the chat template")
    p.add_argument(
        "--mode", choices=("ar", "sd", "ssd", "auto"), default="auto", help="how tokens are made (%(default)s)"
    )
    p.add_argument(
        "--draft", metavar="D", help="folder or hub id of the draft, or ngram (the draft made for the target)"
    )
    p.add_argument(
        "--backup-draft",
        metavar="D",
        help="larger draft for texts where the first brings little: as --draft, or large (none)",
    )
    p.add_argument("-k", type=int, metavar="N", help="tokens of a branch (chosen round by round)")
    p.add_argument("--tree-width", type=int, metavar="N", help="branches of a speculation (1; without -k 3)")
    p.add_argument("--branches", type=int, metavar="N", help="outcomes that ssd prepares for (24)")
    p.add_argument("--fan-out", type=int, metavar="N", help="bonus tokens at every node (--branches, shared out)")
    p.add_argument("--draft-threads", metavar="N|CORES", help="threads of ssd's draft, as --threads (the last core)")
    p.add_argument("--draft-dtype", choices=DTYPES, help="format of the draft's weights (int8; on a GPU bf16)")
    p.add_argument(
        "--verify", choices=("coupled", "rejection"),
        help="coupled gives the tokens of plain decoding, rejection others of the same distribution (coupled)",
    )  # fmt: skip
    p.add_argument("--saguaro", type=float, metavar="C", help="with rejection, in [0, 1]; 1 is off (1)")
    p.add_argument("--target", default=DEFAULT_TARGET, help="folder, GGUF file or hub id of the model (%(default)s)")
    p.add_argument("--dtype", choices=DTYPES, help="format of the weights (bf16; q4 for a GGUF file of four bits)")
    sampling_options.add(p)
    p.add_argument("--batch", type=int, metavar="N", help="prompts of a file that decode together (8)")
    p.add_argument("--kv-tokens", type=int, metavar="N", help="KV of target and draft (what fits, on the CPU 32768)")
    p.add_argument(
        "--no-prefix-cache", dest="prefix_caching", action="store_false",
        help="compute the beginning that prompts share for each of them",
    )  # fmt: skip
    p.add_argument(
        "--device", default="cpu", metavar="D", help="device of the target: cpu, cuda or cuda:N (%(default)s)"
    )
    p.add_argument(
        "--prompt-attention", choices=PROMPT_ATTENTION, default="tree",
        help="flash: the package flash-attn for long prompts on a GPU (%(default)s)",
    )  # fmt: skip
    p.add_argument("--draft-device", metavar="D", help="device of the draft (that of the target)")
    p.add_argument(
        "--threads", metavar="N|CORES", help="a number of threads, or cores such as 0,2 or 4-7 or 3-3 (all cores)"
    )
    p.add_argument("--trace", metavar="FILE", help="write what both lanes did when, for ui.perfetto.dev")
    p.add_argument(
        "--show", action="store_true",
        help="colour tokens by origin: speculation cache, fallback, draft; the target's own stay plain",
    )  # fmt: skip
    p.add_argument("--json", metavar="FILE", help="write outputs and statistics here")
    return p


def read_prompts(path: str) -> list[tuple[str, str]]:
    """The prompts of a file of JSON objects, one a line, each as (file and line, prompt); empty lines are skipped."""
    with asked():
        found = [(where, line.get("prompt")) for where, line in read_lines(path)]
    for where, prompt in found:
        if not isinstance(prompt, str):
            raise BadInput(f"{where}: got a prompt of {prompt!r}, wanted a text")
    if not found:
        raise BadInput(f"{path}: holds no prompt")
    return found


def collect_prompts(args) -> list[tuple[str, str]]:
    if (args.prompt is None) == (args.prompts is None):
        raise BadInput("give one prompt, or --prompts FILE")
    prompts = read_prompts(args.prompts) if args.prompts else [("prompt", args.prompt)]
    for where, prompt in prompts:
        if not prompt.strip():
            raise BadInput(f"{where}: is empty, wanted some text")
    return prompts


def check_options(args) -> None:
    """Refuse options that would have no effect, and files that two options name."""
    if args.batch is not None and args.batch < 1:
        raise BadInput(f"--batch: got {args.batch}, wanted at least 1")
    if args.show and args.prompts:
        raise BadInput("--show: colours the answer to one prompt; leave out --show or --prompts")
    with asked():
        check_used(speculation_of(args), lambda name: "-k" if name == "k" else f"--{name.replace('_', '-')}")
    taken = {Path(path).resolve() for path in (args.prompts, args.json_schema) if path}
    for name in ("json", "trace"):
        if path := getattr(args, name):
            check_writable(f"--{name}", path)
            if (whole := Path(path).resolve()) in taken:
                raise BadInput(f"--{name}: cannot write {path}: another option names this file too")
            taken |= {whole} if whole.is_file() or not whole.exists() else set()


def speculation_of(args) -> dict:
    """The options of speculation that were given."""
    return {name: value for name in SPECULATION if (value := getattr(args, name, None)) is not None}


def run(args) -> int:
    cores, prompts = threads(args.threads), collect_prompts(args)
    check_options(args)
    with asked():
        from ssd.runtime import LLM

        params = sampling_options.params(args)
        batch = min(8 if args.batch is None else args.batch, len(prompts) * params.n)
        speculation = speculation_of(args) | {"draft_threads": threads(args.draft_threads, "--draft-threads")}
        llm = LLM(
            args.target, args.dtype, max_batch=batch, threads=cores, seed=args.seed, device=args.device,
            kv_tokens=args.kv_tokens, prefix_caching=args.prefix_caching, prompt_attention=args.prompt_attention,
            **speculation,
        )  # fmt: skip
        ids = [llm.encode(p if args.raw else [{"role": "user", "content": p}], where) for where, p in prompts]
        params = llm.check(params)
    trace = llm.trace() if args.trace else None
    begin, say = time.perf_counter(), printer(go_on=bool(args.json or args.trace))
    if args.prompts:
        outputs = answer_file(llm, prompts, ids, params, say)
    else:
        outputs = answer(llm, ids[0], params, say, args.show)
    stats = llm.stats()
    if args.json:
        stats["bandwidth_fraction"] = llm.bandwidth_fraction()
    llm.close()
    print(summary(stats, outputs, time.perf_counter() - begin), file=sys.stderr)
    if trace:
        written("--trace", args.trace, trace.write)
    if args.json:
        write_json(args, llm, prompts, outputs, stats)
    return 0


COLOURS = {"hit": "\033[32m", "fallback": "\033[33m", "draft": "\033[36m"}  # green, yellow, cyan


def coloured(chunk) -> str:
    return "".join(
        f"{COLOURS[origin]}{piece}\033[0m" if origin in COLOURS and piece else piece
        for origin, piece in zip(chunk.origins, chunk.pieces, strict=True)
    )


def answer(llm, ids, params, say, show=False) -> list:
    """Print the samples of one prompt one after another, each as it is decoded."""
    from ssd.runtime import Output

    chunks, at, told = [[] for _ in range(params.n)], 0, 0
    for chunk in llm.stream(ids, params):
        chunks[chunk.index].append(chunk)
        while at < params.n and told < len(chunks[at]):
            if params.n > 1 and told == 0:
                say(f"--- {at + 1} of {params.n}")
            piece = chunks[at][told]
            say(coloured(piece) if show else piece.text, end="\n" if piece.finish_reason else "")
            at, told = (at + 1, 0) if piece.finish_reason else (at, told + 1)
    outputs = [Output.joined(ids, own) for own in chunks]
    if failed := [output.error for output in outputs if output.error]:
        raise BadInput(failed[0])
    return outputs


def answer_file(llm, prompts, ids, params, say):
    """Print a JSON line for each answer, in the order of the file, as soon as those before it are printed."""
    from tqdm import tqdm

    done, printed, tokens, begin = {}, 0, 0, time.perf_counter()
    with tqdm(total=len(ids) * params.n, unit="answer" if params.n > 1 else "prompt", disable=None) as bar:

        def on_finish(i, output):
            nonlocal printed, tokens
            done[i] = output
            tokens += len(output.token_ids)
            bar.set_postfix_str(f"{tokens / (time.perf_counter() - begin):.1f} tok/s", refresh=False)
            bar.update()
            while printed in done:
                output = done[printed]
                line = {"prompt": prompts[printed // params.n][1], "text": output.text}
                line |= {"finish_reason": output.finish_reason} | ({"index": output.index} if params.n > 1 else {})
                line |= {"error": output.error} if output.error else {}
                with bar.external_write_mode(file=sys.stdout):
                    say(json.dumps(line, ensure_ascii=False))
                printed += 1

        return llm.generate(ids, params, on_finish)


def summary(stats: dict, outputs: list, seconds: float) -> str:
    tokens = sum(len(o.token_ids) for o in outputs)
    speed = f"{stats['tokens_per_second']:.1f} tokens/s, " if stats["tokens_per_second"] else ""
    unit = "answers" if any(o.index for o in outputs) else "prompts"
    prompts = f"{len(outputs)} {unit}, " if len(outputs) > 1 else ""
    known = f", {stats['cached_prompt_tokens']} more were known" if stats["cached_prompt_tokens"] else ""
    prefill = f"prompt of {stats['prefill_tokens']} tokens in {stats['prefill_seconds']:.2f} s{known}"
    if stats["preemptions"]:
        prefill += f"; {stats['preemptions']} preemptions"
    length = stats["mean_accepted_length"]
    accepted = f"{length:.2f} tokens a round, " if length and stats["acceptance_rate"] is not None else ""
    hits = f"hit rate {stats['hit_rate']:.2f}, " if stats["hit_rate"] is not None else ""
    return f"[{prompts}{tokens} tokens in {seconds:.2f} s; decoding {speed}{accepted}{hits}{shares(stats)}{prefill}]"


def shares(stats: dict) -> str:
    """The shares of the decoding time that each part took; empty in plain decoding."""
    if stats["acceptance_rate"] is None or not stats["decode_seconds"]:
        return ""
    whole = 1e3 * stats["decode_seconds"]
    passes = stats["decode_passes"]
    parts = {"verifying": stats["verify_ms"], "waiting": stats["wait_ms"]}
    if stats["hit_rate"] is None:
        parts["drafting"] = stats["draft_ms"]
    return ", ".join(f"{100 * ms * passes / whole:.0f} % {name}" for name, ms in parts.items() if ms) + ", "


def write_json(args, llm, prompts, outputs, stats) -> None:
    config = {
        k: v for k, v in vars(args).items() if k not in ("prompt", "json", "trace", "show", "mode", "batch")
    } | llm.describe()
    results = []
    for i, o in enumerate(outputs):
        result = {"prompt": prompts[i // args.n][1], "text": o.text, "token_ids": o.token_ids}
        result |= {"finish_reason": o.finish_reason} | ({"index": o.index} if args.n > 1 else {})
        result |= {"error": o.error} if o.error else {}
        if o.logprobs is not None:
            result["logprobs"] = o.logprobs
        if o.top_logprobs is not None:
            result["top_logprobs"] = [[{"id": t, "logprob": x} for t, x in top.items()] for top in o.top_logprobs]
        results.append(result)
    text = json.dumps({"mode": args.mode, "config": config, "outputs": results, "stats": stats}, indent=2)
    written("--json", args.json, lambda path: Path(path).write_text(text + "\n"))


def main(argv: list[str] | None = None) -> int:
    return guarded(lambda: run(parser().parse_args(argv)))


if __name__ == "__main__":
    stop_at_once()
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    sys.exit(main())
