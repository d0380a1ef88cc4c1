"""The options of the command line that say how tokens are chosen."""

from pathlib import Path


def add(p) -> None:
    """To an argparse parser."""
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
    p.add_argument("--ignore-eos", action="store_true", help="go on after the end of the answer")
    for name, off, text in (
        ("repetition", 1.0, "scales logits of tokens of prompt and answer (1)"),
        ("frequency", 0.0, "off the logit each time that a token is in the answer (0)"),
        ("presence", 0.0, "off the logit once if it is there at all (0)"),
    ):
        p.add_argument(f"--{name}-penalty", type=float, default=off, metavar="X", help=text)
    p.add_argument(
        "--logit-bias", action="append", default=[], metavar="ID=X", help="on the logit of a token; repeatable"
    )
    p.add_argument("--json-object", action="store_true", help="the answer is a JSON object")
    p.add_argument("--json-schema", metavar="FILE", help="the answer is JSON of the schema in this file")
    p.add_argument("--regex", metavar="R", help="the answer matches this regular expression")
    p.add_argument("--logprobs", type=int, metavar="N", help="of tokens and the N likeliest in their places, in --json")


def params(args):
    """SamplingParams of parsed options; without a seed, which is the engine's. Raises ValueError or TypeError."""
    from ssd.runtime import SamplingParams

    if args.logprobs is not None and not args.json:
        raise ValueError("logprobs: are written into the file of --json, wanted that option too")
    return SamplingParams(
        temperature=args.temperature, top_p=args.top_p, top_k=args.top_k, min_p=args.min_p, n=args.n,
        max_tokens=args.max_tokens, stop=tuple(args.stop), ignore_eos=args.ignore_eos,
        logprobs=args.logprobs is not None, top_logprobs=args.logprobs or 0,
        presence_penalty=args.presence_penalty, frequency_penalty=args.frequency_penalty,
        repetition_penalty=args.repetition_penalty, logit_bias=bias(args.logit_bias), json_object=args.json_object,
        json_schema=schema(args.json_schema) if args.json_schema else None, regex=args.regex,
    )  # fmt: skip


def schema(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"json_schema: {path} is not UTF-8") from None


def bias(texts: list[str]) -> dict[int, float]:
    """Of "ID=X" each."""
    found = {}
    for text in texts:
        token, _, value = text.partition("=")
        try:
            found[int(token)] = float(value)
        except ValueError:
            raise ValueError(f"logit_bias: got {text!r}, wanted a token id and a number, as 42=-1.5") from None
    return found
