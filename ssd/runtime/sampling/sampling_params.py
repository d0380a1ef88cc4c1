"""What a request may ask of sampling and of stopping."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real


def check_number(name: str, value, wanted: str, ok) -> None:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name}: got {value!r}, wanted a number")
    if not ok(value):  # a NaN fails every comparison
        raise ValueError(f"{name}: got {value}, wanted {wanted}")


def check_integer(name: str, value, wanted: str, ok) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name}: got {value!r}, wanted an integer")
    if not ok(value):
        raise ValueError(f"{name}: got {value}, wanted {wanted}")


COLDEST, HOTTEST = 1e-6, 1e6  # temperatures beside 0


@dataclass(frozen=True)
class SamplingParams:
    """How the tokens of one request are chosen, and when it ends. Raises ValueError or TypeError naming the field.

    The filters apply in the order top_k, top_p, min_p. What changes logits applies before them, in the order
    logit_bias, repetition_penalty, frequency_penalty, presence_penalty, grammar, min_tokens. All of it is a function of
    the tokens before, so speculation changes nothing.
    """

    temperature: float = 0.0  # 0 takes the most probable token, lowest id first
    top_p: float = 1.0  # in (0, 1]; 1: off
    top_k: int = 0  # 0: off
    min_p: float = 0.0  # in [0, 1); 0: off
    seed: int | None = None  # in [0, 2^63); None: one that the engine derives
    max_tokens: int = 128  # new tokens at most
    stop: str | tuple[str, ...] = ()  # the text ends before the first one to be complete; special tokens count as text
    ignore_eos: bool = False  # an end-of-sequence token is a token like any other
    # the log-probability of each token under the raw distribution: the model's logits as they are, at temperature 1
    logprobs: bool = False
    top_logprobs: int = 0  # 0 to 20: also those of so many most probable tokens of each position
    presence_penalty: float = 0.0  # in [-2, 2]; subtracted once if a token is in the answer at all
    frequency_penalty: float = 0.0  # in [-2, 2]; subtracted once for each time that a token is in the answer
    # in [0.01, 100]; divides positive logits of tokens of prompt and answer, and multiplies negative ones; 1: off
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] | None = None  # token id to a number in [-100, 100], which is added
    n: int = 1  # samples of a prompt: sample 0 has the seed, sample i that of ssd.runtime.sample_seed(seed, i)
    # one of three grammars, by the package llguidance; the answer ends where its grammar does, or is cut by max_tokens
    json_object: bool = False  # any JSON object
    json_schema: str | dict | bool | None = None  # JSON of that schema, which comes as its text or as the object itself
    regex: str | None = None  # the whole answer matches this regular expression
    stop_token_ids: tuple[int, ...] = ()  # further tokens that end the answer; the text ends before them
    # before so many new tokens no token is drawn that ends the answer, unless a grammar leaves nothing else, and stop
    # strings that are complete by then are ignored
    min_tokens: int = 0

    def __post_init__(self):
        # the kernels compute in float32, in which these must keep their meaning
        hot = f"0, or {COLDEST} to {HOTTEST}"
        check_number("temperature", self.temperature, hot, lambda x: x == 0 or COLDEST <= x <= HOTTEST)
        check_number("top_p", self.top_p, "a number in (0, 1], at least 1e-37", lambda x: 1e-37 <= x <= 1)
        check_number("min_p", self.min_p, "a number in [0, 1), at most 1 - 1e-7", lambda x: 0 <= x <= 1 - 1e-7)
        check_integer("top_k", self.top_k, "0 (off) or more, below 2^31", lambda x: 0 <= x < 2**31)
        check_integer("max_tokens", self.max_tokens, "at least 1", lambda x: x >= 1)
        least = f"0 to max_tokens, {self.max_tokens}"
        check_integer("min_tokens", self.min_tokens, least, lambda x: 0 <= x <= self.max_tokens)
        check_integer("n", self.n, "1 to 128", lambda x: 1 <= x <= 128)
        check_integer("top_logprobs", self.top_logprobs, "0 to 20", lambda x: 0 <= x <= 20)
        for name in ("presence_penalty", "frequency_penalty"):
            check_number(name, getattr(self, name), "a number in [-2, 2]", lambda x: -2 <= x <= 2)
        check_number("repetition_penalty", self.repetition_penalty, "0.01 to 100", lambda x: 0.01 <= x <= 100)
        if self.seed is not None:
            check_integer("seed", self.seed, "0 <= seed < 2^63", lambda x: 0 <= x < 2**63)
        for name in ("ignore_eos", "logprobs", "json_object"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name}: got {getattr(self, name)!r}, wanted True or False")
        object.__setattr__(self, "stop", _texts(self.stop))
        object.__setattr__(self, "stop_token_ids", _token_ids(self.stop_token_ids))
        object.__setattr__(self, "logprobs", self.logprobs or self.top_logprobs > 0)
        object.__setattr__(self, "logit_bias", _sorted_bias(self.logit_bias))
        object.__setattr__(self, "json_schema", _schema_text(self.json_schema))
        if not isinstance(self.regex, (str, type(None))):
            raise TypeError(f"regex: got {type(self.regex).__name__}, wanted a regular expression as a text")
        if self.regex is not None and not _is_unicode(self.regex):
            raise ValueError(f"regex: got {self.regex!r}, wanted text without lone surrogates")
        grammars = [bool(self.json_object), self.json_schema is not None, self.regex is not None]
        if sum(grammars) > 1:
            raise ValueError("json_object, json_schema, regex: got more than one of them, wanted one")
        if any(grammars) and self.ignore_eos:
            raise ValueError("ignore_eos: got True beside a grammar, whose answer ends where the grammar does")

    def ends(self, eos_ids: frozenset[int]) -> frozenset[int]:
        """The tokens that end an answer. eos_ids: the model's end-of-sequence tokens."""
        return (frozenset() if self.ignore_eos else eos_ids).union(self.stop_token_ids)


def _schema_text(schema) -> str | None:
    if schema is None:
        return None
    try:
        value = json.loads(schema) if isinstance(schema, str) else schema
        text = json.dumps(value, allow_nan=False)
        if not _is_unicode(json.dumps(value, ensure_ascii=False)):
            raise ValueError("it holds a lone surrogate")
    except (ValueError, TypeError, RecursionError) as e:
        raise ValueError(f"json_schema: got {schema!r}, which is no JSON: {e}") from None
    if not isinstance(value, (dict, bool)):
        raise TypeError(f"json_schema: got {type(value).__name__}, wanted an object, as itself or as JSON text")
    return text


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= c <= "\udfff" for c in text)


def _texts(stop) -> tuple[str, ...]:
    stop = (stop,) if isinstance(stop, str) else stop
    if not isinstance(stop, (tuple, list)) or not all(isinstance(text, str) for text in stop):
        raise TypeError(f"stop: got {stop!r}, wanted a string or several")
    if "" in stop:
        raise ValueError("stop: got an empty string, wanted at least one character")
    return tuple(stop)


def _token_ids(ids) -> tuple[int, ...]:
    if not isinstance(ids, (tuple, list)):
        raise TypeError(f"stop_token_ids: got {ids!r}, wanted a tuple of token ids")
    for token in ids:
        check_integer("stop_token_ids", token, "token ids from 0", lambda x: x >= 0)
    return tuple(int(token) for token in ids)


def _sorted_bias(bias) -> Mapping[int, float] | None:
    if bias is not None and not isinstance(bias, Mapping):
        raise TypeError(f"logit_bias: got {type(bias).__name__}, wanted a mapping from token id to number")
    for token, value in (bias or {}).items():
        check_integer("logit_bias", token, "token ids from 0", lambda x: x >= 0)
        check_number("logit_bias", value, "numbers in [-100, 100]", lambda x: -100 <= x <= 100)
    return {int(t): float(v) for t, v in sorted(bias.items())} if bias else None
