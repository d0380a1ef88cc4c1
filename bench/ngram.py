"""Drafting from the text alone: `python -m bench.ngram --json F`.

The target's own greedy answers are replayed.
`rows`: workload, matcher, k, tokens_per_round (that a verification of up to k proposed tokens emits; 1 without
speculation), acceptance_rate (accepted by proposed tokens), prompt_tokens (mean).
`times`: text, tokens, tokens_per_round, microseconds {median, min, max} of a proposal, including its new tokens.
Matchers: "automaton" is ssd.runtime.drafting.ngram; "n-grams" proposes what followed the newest occurrence of the
longest suffix of 8 to 2 tokens; "lookup" does so with 3 to 1 tokens and the oldest occurrence.
"""

import argparse
import sys
import time

import numpy as np
import torch

from ssd.cli.command import guarded, whole

from . import results
from .timing import spread
from .workloads import PROMPTS, workloads_of

LONG = 32768


class Ngrams:
    """A matcher with dictionaries of n-grams, for comparison."""

    def __init__(self, longest: int, shortest: int, newest: bool):
        self.sizes = range(longest, shortest - 1, -1)
        self.newest = newest
        self.text: list[int] = []
        self.ends: dict[tuple, int] = {}

    def follow(self, tokens: list[int], limit: int) -> list[int]:
        for token in tokens:
            for n in self.sizes:  # n-grams that end before the new token have a token that follows them
                if len(self.text) >= n:
                    gram = tuple(self.text[-n:])
                    if self.newest or gram not in self.ends:
                        self.ends[gram] = len(self.text)
            self.text.append(token)
        found = (self.ends.get(tuple(self.text[-n:])) for n in self.sizes)
        end = next((e for e in found if e is not None), None)
        return [] if end is None else self.text[end : end + limit]


class Automaton:
    """The proposer of the runtime, called as the lanes call it."""

    def __init__(self, tokens: list[int], known: int):
        from ssd import SamplingParams
        from ssd.runtime.drafting.ngram import NgramProposer
        from ssd.runtime.engine.sequence import Sequence

        self.sequence = Sequence.start(tokens, 0, SamplingParams(), 0, None)
        self.sequence.num_tokens = known
        self.proposer = NgramProposer()

    def follow(self, tokens: list[int], limit: int) -> list[int]:
        found = self.proposer.after(self.sequence, tokens, limit).tokens
        self.sequence.num_tokens += len(tokens)
        return found


def replay(prompt: list[int], answer: list[int], matcher, k: int) -> tuple[int, int, int]:
    """(rounds, tokens proposed, tokens accepted) for an answer, whose first token the prompt's pass emits."""
    rounds = proposed = accepted = 0
    at = 1
    new = prompt + answer[:1]
    while at < len(answer):
        found = matcher.follow(new, min(k, len(answer) - at - 1))
        right = 0
        while right < len(found) and found[right] == answer[at + right]:
            right += 1
        rounds += 1
        proposed += len(found)
        accepted += right
        new = answer[at : at + right + 1]
        at += len(new)
    return rounds, proposed, accepted


MATCHERS = {
    "automaton": lambda prompt, answer: Automaton(prompt + answer, 0),
    "n-grams": lambda *_: Ngrams(8, 2, newest=True),
    "lookup": lambda *_: Ngrams(3, 1, newest=False),
}


def acceptance(workload: str, prompts: list[list[int]], answers: list[list[int]], ks: list[int]) -> list[dict]:
    rows = []
    for name, make in MATCHERS.items():
        for k in ks:
            runs = [replay(p, a, make(p, a), k) for p, a in zip(prompts, answers, strict=True)]
            rounds, proposed, accepted = map(sum, zip(*runs, strict=True))
            rows.append({"workload": workload, "matcher": name, "k": k, "tokens_per_round": 1 + accepted / rounds})
            rows[-1]["acceptance_rate"] = accepted / proposed if proposed else None
            rows[-1]["prompt_tokens"] = sum(map(len, prompts)) / len(prompts)
    return rows


def times(name: str, tokens: np.ndarray, new: int, k: int, rounds: int = 400) -> dict:
    """The row of `times` for proposals at the end of a text, each after `new` more tokens."""
    matcher = Automaton(tokens, len(tokens) - rounds * new)
    matcher.follow([], k)
    seconds = []
    tail = tokens[len(tokens) - rounds * new :].reshape(rounds, new).tolist()
    for piece in tail:
        begin = time.perf_counter()
        matcher.follow(piece, k)
        seconds.append(1e6 * (time.perf_counter() - begin))
    return {"text": name, "tokens": len(tokens), "tokens_per_round": new, "microseconds": spread(seconds)}


def long_texts(ids: list[int]) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0).integers(0, 49152, LONG)
    return {"prompts": np.resize(np.array(ids), LONG), "random": random, "loop": np.arange(LONG) % 7}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", help="folder or id of the model (the default target)")
    parser.add_argument("--dtype", default="int8", help="precision of the target (%(default)s)")
    parser.add_argument("--data", nargs="+", metavar="FILE.jsonl", help="files of prompts (bench/prompts/long)")
    parser.add_argument("--limit", type=whole(1), help="prompts of each file (all)")
    parser.add_argument("--max-tokens", type=whole(1), default=256, help="tokens of each answer (%(default)s)")
    parser.add_argument("-k", default="4,7,15", help="tokens of a proposal (%(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write the results to this file")
    args = parser.parse_args(argv)
    from ssd import LLM, SamplingParams

    texts = workloads_of(parser, args, PROMPTS / "long")
    llm = LLM(args.target, args.dtype)
    rows = []
    everything = []
    for workload, prompts in texts.items():
        ids = [llm.tokenizer.encode_chat([{"role": "user", "content": p}]) for p in prompts]
        everything += [i for prompt in ids for i in prompt]
        answers = llm.generate(ids, SamplingParams(max_tokens=args.max_tokens, temperature=0.0))
        ks = list(map(int, args.k.split(",")))
        rows += acceptance(workload, ids, [a.token_ids for a in answers], ks)
    with torch.inference_mode():
        spent = [times(name, text, new, 7) for name, text in long_texts(everything).items() for new in (1, 5)]
    results.write(args.json, rows, times=spent)
    print(results.table(rows, list(rows[0])))
    print(results.table(spent, list(spent[0])))


if __name__ == "__main__":
    sys.exit(guarded(main, ValueError))
