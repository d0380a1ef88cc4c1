"""Answers that keep to a grammar: JSON, JSON of a schema, or a regular expression, by llguidance."""

import json
from functools import lru_cache

import numpy as np

from .json_schema import has_finite_answer
from .sampling_params import SamplingParams

ANY_OBJECT = '{"type": "object"}'
SHOWN = 200  # characters of a grammar in an error
WHITESPACE = r"[ \n\r\t]{1,20}"  # between the tokens of JSON: a model can indent, and cannot go on with it for ever


class Grammars:
    """Grammars for one tokenizer. eos_ids: end-of-sequence tokens, allowed where a grammar may end; vocab: logits of a
    row. The tokenizer may have more ids than that; those are never drawn."""

    def __init__(self, tokenizer, eos_ids: frozenset[int], vocab: int):
        self.tokenizer, self.eos_ids, self.vocab = tokenizer, eos_ids, vocab
        self._library = self._tokens = None
        self._compiled = lru_cache(16)(self._compile)

    def start(self, params: SamplingParams) -> "Mask | None":
        """The grammar that a request asks for, or None. Raises ValueError for a text that is no grammar, or has no
        finite answer, or one that this model cannot keep to, ImportError where llguidance is missing."""
        for name, text in asked_for(params).items():
            return Mask(self._compiled(name, text).deep_copy(), self.eos_ids, self.vocab, name)
        return None

    def _compile(self, name: str, text: str):
        if self._library is None:
            self._load(name)
        matcher = self._library.LLMatcher
        got = f"{name}: got {text if len(text) <= SHOWN else text[:SHOWN] + '...'}"
        try:
            if name == "regex":
                grammar = matcher.grammar_from_regex(text)
            else:
                grammar = matcher.grammar_from_json_schema(text, defaults={"whitespace_pattern": WHITESPACE})
        except ValueError as e:
            raise ValueError(f"{got}, which is refused: {e}") from None
        failed, messages = matcher.validate_grammar_with_warnings(grammar, self._tokens)
        if failed:
            raise ValueError(f"{got}, which is refused: {' '.join(messages[0].split())[:SHOWN]}")
        if name != "regex" and not has_finite_answer(json.loads(text)):
            raise ValueError(f"{got}, which has no finite answer: a part that it needs contains itself")
        start = matcher(self._tokens, grammar, log_level=0)
        probe = start.deep_copy()
        probe.compute_bitmask()
        if probe.is_error():  # no token can begin an answer, and an empty one does not fit
            raise ValueError(f"{got}, which no answer of this model fits")
        return start

    def _load(self, name: str) -> None:
        ids = self.tokenizer.vocab_size
        ends = sorted(token for token in self.eos_ids if token < ids)
        if not ends:
            raise ValueError(f"{name}: needs a model with an end-of-sequence token, to end the answer with")
        try:
            import llguidance
        except ImportError:
            raise ImportError(f"{name}: needs the package llguidance (pip install llguidance)") from None
        self._tokens = llguidance.LLTokenizer(self.tokenizer.json(), n_vocab=max(self.vocab, ids), eos_token=ends)
        self._library = llguidance


def asked_for(params: SamplingParams) -> dict[str, str]:
    """The text of the grammar by the field that asks for it, empty without one."""
    found = {"json_object": ANY_OBJECT if params.json_object else None}
    found |= {"json_schema": params.json_schema, "regex": params.regex}
    return {name: text for name, text in found.items() if text is not None}


class Mask:
    """Sets logits of what the grammar of one request refuses to -inf.

    matcher: llguidance.LLMatcher where the answer begins; name: the field that asked for the grammar. A row that
    follows a refused token stays as it is: no walk comes there. Where nothing at all is allowed, which some grammar
    cannot help with some vocabulary, the answer ends.
    """

    def __init__(self, matcher, eos_ids: frozenset[int], vocab: int, name: str = "grammar"):
        self.eos_ids, self.vocab, self.name = eos_ids, vocab, name
        self.answered = 0
        self.states = {(): matcher}  # by the tokens behind the confirmed ones; None: refused

    def copy(self) -> "Mask":
        other = Mask(self.states[()].deep_copy(), self.eos_ids, self.vocab, self.name)
        other.answered = self.answered
        return other

    def __call__(self, rows: np.ndarray, answer: np.ndarray, paths: list[list[int]]) -> None:
        """Change logits float32 [n, vocab] in place, as Penalties does. Raises ValueError where the grammar has become
        too large to go on."""
        self._confirm(answer)
        for row, path in zip(rows, paths, strict=True):
            state = self._state(tuple(path))
            if state is not None:
                allowed = np.frombuffer(state.compute_bitmask(), np.uint8)
                if state.is_error():
                    raise ValueError(f"{self.name}: cannot go on: {state.get_error().splitlines()[0]}")
                allowed = np.unpackbits(allowed, bitorder="little", count=self.vocab).view(bool)
                if not allowed.any():
                    allowed[list(self.eos_ids)] = True
                row[~allowed] = -np.inf

    def allows(self, answer: np.ndarray, path: list[int]) -> bool:
        """Whether the tokens of a path may follow the answer; an end-of-sequence token only as the last one."""
        self._confirm(answer)
        *above, last = path
        if last in self.eos_ids:
            state = self._state(tuple(above))
            return state is not None and state.is_accepting()
        return self._state(tuple(path)) is not None

    def _confirm(self, answer: np.ndarray) -> None:
        new = answer[self.answered :].tolist()
        if new:
            self.states = {(): self.states[()]}
            self.states[()].try_consume_tokens(new)
            self.answered = len(answer)

    def _state(self, path: tuple[int, ...]):
        if path not in self.states:
            above = self._state(path[:-1])
            state = above.deep_copy() if above is not None and path[-1] not in self.eos_ids else None
            self.states[path] = state if state is not None and state.try_consume_tokens([path[-1]]) else None
        return self.states[path]
