"""What a request may ask of sampling and of stopping."""

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


@dataclass(frozen=True)
class SamplingParams:
    """How the tokens of one request are chosen and when it ends.

    temperature: 0 takes the most probable token, lowest id first. The filters apply in the order top_k (0: off),
    top_p in (0, 1] (1: off), min_p in [0, 1) (0: off). seed in [0, 2^63), or None for one that the engine derives.
    max_tokens: new tokens at most. stop: a string or several; the text ends before the first one to be complete.
    ignore_eos: an end-of-sequence token is a token like any other. logprobs: keep the log-probability of each token
    under the raw distribution (temperature 1, no filter). Raises ValueError or TypeError naming the field.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int = 128
    stop: str | tuple[str, ...] = ()
    ignore_eos: bool = False
    logprobs: bool = False

    def __post_init__(self):
        check_number("temperature", self.temperature, "a finite number, at least 0", lambda x: 0 <= x < float("inf"))
        check_number("top_p", self.top_p, "a number in (0, 1]", lambda x: 0 < x <= 1)
        check_number("min_p", self.min_p, "a number in [0, 1)", lambda x: 0 <= x < 1)
        check_integer("top_k", self.top_k, "0 (off) or more, below 2^31", lambda x: 0 <= x < 2**31)
        check_integer("max_tokens", self.max_tokens, "at least 1", lambda x: x >= 1)
        if self.seed is not None:
            check_integer("seed", self.seed, "0 <= seed < 2^63", lambda x: 0 <= x < 2**63)
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        if not isinstance(stop, (tuple, list)) or not all(isinstance(text, str) for text in stop):
            raise TypeError(f"stop: got {stop!r}, wanted a string or several")
        for text in stop:
            if not text:
                raise ValueError("stop: got an empty string, wanted at least one character")
        object.__setattr__(self, "stop", tuple(stop))
