"""What an engine may be told about its size and its threads."""

from dataclasses import dataclass

from .sampling_params import check_integer
from .threads import cores_of

DEFAULT_KV_TOKENS = 32768


@dataclass(frozen=True)
class EngineOptions:
    """Sizes in tokens, requests and threads. Raises ValueError or TypeError naming the field.

    max_batch: requests that decode together. max_model_len: tokens of prompt and answer together; by default, and at
    most, the context of the model. kv_tokens: tokens that the KV cache holds, shared by all requests; by default
    max_batch full contexts, but no more than 32,768 or one full context, whichever is more. prefill_chunk: rows of
    prompts in one pass. threads: a number of threads, or a list of cores to bind them to; by default one for every
    core of the process. seed: with the number of a request, the seed of one that names none.
    """

    max_batch: int = 8
    max_model_len: int | None = None
    kv_tokens: int | None = None
    prefill_chunk: int = 512
    threads: int | list[int] | None = None
    seed: int = 0

    def __post_init__(self):
        for name in ("max_batch", "max_model_len", "kv_tokens", "prefill_chunk"):
            value = getattr(self, name)
            if value is not None:
                check_integer(name, value, "at least 1", lambda x: x >= 1)
        check_integer("seed", self.seed, "0 <= seed < 2^63", lambda x: 0 <= x < 2**63)
        cores_of(self.threads)

    def sizes(self, context: int) -> tuple[int, int]:
        """(max_model_len, kv_tokens) for a model of that context; no request can outgrow either."""
        longest = min(context, self.max_model_len or context)
        tokens = self.kv_tokens or min(self.max_batch * longest, max(longest, DEFAULT_KV_TOKENS))
        return min(longest, tokens), tokens
