"""The options of the command line that say how tokens are chosen."""

from pathlib import Path

from ssd.text_files import read_text

from .command import listed


def add(p) -> None:
    """Add these options to an argparse parser."""
    p.add_argument("--max-tokens", type=int, default=128, metavar="N", help="new tokens at most (%(default)s)")
    p.add_argument("--temperature", type=float, default=0.0, metavar="X", help="0 takes the most probable token (0)")
    p.add_argument("--top-p", type=float, default=1.0, metavar="X", help="in (0, 1]; 1 is off (1)")
    p.add_argument("--top-k", type=int, default=0, metavar="N", help="0 is off (0)")
    p.add_argument("--min-p", type=float, default=0.0, metavar="X", help="in [0, 1); 0 is off (0)")
    p.add_argument(
        "--seed", type=int, default=0, metavar="N", help="same seed, same text (0); each prompt has its own noise"
    )
    p.add_argument("--n", type=int, default=1, metavar="N", help="samples of each prompt (%(default)s)")
    p.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end before this text; may be repeated")
    p.add_argument("--stop-token-ids", type=listed(int), default=[], metavar="IDS", help="end before these tokens: 1,2")
    p.add_argument("--min-tokens", type=int, default=0, metavar="N", help="new tokens before the answer may end (0)")
    p.add_argument("--ignore-eos", action="store_true", help="go on after the end of the answer")
    for name, off, text in (
        ("repetition", 1.0, "scales the logits of tokens of prompt and answer (1)"),
        ("frequency", 0.0, "subtracted from the logit for each time that a token is in the answer (0)"),
        ("presence", 0.0, "subtracted once if the token is in the answer at all (0)"),
    ):
        p.add_argument(f"--{name}-penalty", type=float, default=off, metavar="X", help=text)
    p.add_argument(
        "--logit-bias",
        action="append",
        default=[],
        metavar="ID=X",
        help="add X to the logit of a token; may be repeated",
    )
    p.add_argument("--json-object", action="store_true", help="the answer is a JSON object")
    p.add_argument("--json-schema", metavar="FILE", help="the answer is JSON of the schema in this file")
    p.add_argument("--regex", metavar="R", help="the answer matches this regular expression")
    p.add_argument(
        "--logprobs",
        type=int,
        metavar="N",
        help="write log-probabilities of the tokens, and of the N likeliest at each place, to --json",
    )


def params(args):
    """The SamplingParams of parsed options; the seed goes to the engine instead. Raises ValueError or TypeError."""
    from ssd.runtime import SamplingParams

    if args.logprobs is not None and not args.json:
        raise ValueError("--logprobs: go to the file of --json; add that option")
    return SamplingParams(
        temperature=args.temperature, top_p=args.top_p, top_k=args.top_k, min_p=args.min_p, n=args.n,
        max_tokens=args.max_tokens, stop=tuple(args.stop), stop_token_ids=tuple(args.stop_token_ids),
        min_tokens=args.min_tokens, ignore_eos=args.ignore_eos,
        logprobs=args.logprobs is not None, top_logprobs=args.logprobs or 0,
        presence_penalty=args.presence_penalty, frequency_penalty=args.frequency_penalty,
        repetition_penalty=args.repetition_penalty, logit_bias=bias(args.logit_bias), json_object=args.json_object,
        json_schema=schema(args.json_schema) if args.json_schema else None, regex=args.regex,
    )  # fmt: skip


def schema(path: str) -> str:
    try:
        return read_text(Path(path))
    except ValueError as e:
        raise ValueError(f"json_schema: {e}") from None


def bias(texts: list[str]) -> dict[int, float]:
    """Biases by token id, from texts of the form "ID=X". Raises ValueError."""
    found = {}
    for text in texts:
        token, _, value = text.partition("=")
        try:
            found[int(token)] = float(value)
        except ValueError:
            raise ValueError(f"logit_bias: got {text!r}, wanted a token id and a number, such as 42=-1.5") from None
    return found
