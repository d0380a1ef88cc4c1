"""Requests: prompts and parameters, checked and turned into sequences."""

from itertools import count

from .engine.sequence import Sequence
from .options import EngineOptions
from .sampling.grammar import Grammars
from .sampling.logits_processors import MinTokens
from .sampling.sampling_params import SamplingParams
from .sampling.seeds import derived_seed, sample_seed
from .sampling.text_stream import TextStream

Prompt = str | list[int] | list[dict]


class Requests:
    """Makes sequences for one model. vocab: its token ids are below it; max_model_len: tokens of prompt and answer."""

    def __init__(self, tokenizer, grammars: Grammars, vocab: int, max_model_len: int, options: EngineOptions):
        self.tokenizer, self.grammars, self.vocab = tokenizer, grammars, vocab
        self.max_model_len, self.options = max_model_len, options
        self._numbers = count()

    def sequences(self, ids: list[int], params: SamplingParams) -> list[Sequence]:
        """The samples of one prompt."""
        number = next(self._numbers)
        seed = derived_seed(self.options.seed, number) if params.seed is None else params.seed
        room = min(params.max_tokens, self.max_model_len - len(ids))
        samples = []
        for i in range(params.n):
            text = TextStream(self.tokenizer.detokenizer(prompt=ids), params.stop, params.min_tokens)
            sample = Sequence.start(ids, room, params, sample_seed(seed, i), text, i)
            if mask := self.grammars.start(params):
                sample.logits_processors.append(mask)
            if params.min_tokens:  # after the grammar, which may leave nothing but an end
                sample.logits_processors.append(MinTokens(params.min_tokens, params.ends(self.grammars.eos_ids)))
            samples.append(sample)
        return samples

    def check(self, params: SamplingParams | None) -> SamplingParams:
        """The same, or the default. Raises ValueError, TypeError or ImportError for what this model cannot serve."""
        if not isinstance(params, (SamplingParams, type(None))):
            raise TypeError(f"params: got {type(params).__name__}, wanted SamplingParams")
        params, last = params or SamplingParams(), self.vocab - 1
        if params.logit_bias and max(params.logit_bias) > last:
            raise ValueError(f"logit_bias: got token {max(params.logit_bias)}, wanted token ids from 0 to {last}")
        if params.stop_token_ids and max(params.stop_token_ids) > last:
            raise ValueError(f"stop_token_ids: got {max(params.stop_token_ids)}, wanted token ids from 0 to {last}")
        self.grammars.start(params)
        return params

    def encode(self, prompt: Prompt, name: str = "prompt") -> list[int]:
        """The token ids of a prompt. Raises ValueError or TypeError, under that name, for one that cannot be served."""
        if isinstance(prompt, str):
            ids = self.tokenizer.encode(unicode(prompt, name))
        elif not isinstance(prompt, (list, tuple)):
            raise TypeError(f"{name}: got {type(prompt).__name__}, wanted a text, token ids or chat messages")
        elif prompt and isinstance(prompt[0], dict):
            ids = self.tokenizer.encode(unicode(self.tokenizer.chat(prompt), name), add_special_tokens=False)
        else:
            ids = list(prompt)
        for token in ids:  # those of a text too: a tokenizer may have tokens that the model lacks
            if type(token) is not int or not 0 <= token < self.vocab:
                raise ValueError(f"{name}: got token {token!r}, wanted integers from 0 to {self.vocab - 1}")
        if not ids:
            raise ValueError(f"{name}: is empty, wanted at least one token")
        if len(ids) >= self.max_model_len:
            limit = "KV cache" if self.max_model_len == self.options.kv_tokens else "context"
            raise ValueError(
                f"{name}: got {len(ids)} tokens, wanted at most {self.max_model_len - 1} in a {limit} of "
                f"{self.max_model_len}"
            )
        return ids


def unicode(text: str, name: str) -> str:
    """The same text. Raises ValueError where it holds bytes that are not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name}: got bytes that are not UTF-8") from None
    return text


def is_one(prompts) -> bool:
    """Whether prompts is a single one: a text, token ids, or one chat."""
    if not isinstance(prompts, (list, tuple)):
        return True
    return bool(prompts) and all(isinstance(p, (int, dict)) for p in prompts)
