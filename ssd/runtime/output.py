"""What a caller gets."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Output:
    """A finished request."""

    prompt: object  # as it was given
    text: str  # without special tokens, cut before a stop string
    token_ids: list[int]  # every sampled token, an end-of-sequence token and the tokens of a stop string included
    finish_reason: str  # "stop" (end of sequence or a stop string), "length" (max_tokens or end of context) or "error"
    logprobs: list[float] | None = None  # by token, where asked for
    top_logprobs: list[dict[int, float]] | None = None  # by token: the likeliest in its place, by id
    index: int = 0  # which of the samples of the prompt
    error: str | None = None  # what ended an answer whose finish_reason is "error"

    @classmethod
    def joined(cls, prompt, chunks: list["Chunk"]) -> "Output":
        """The output that all chunks of one answer make."""
        last = chunks[-1]

        def all_of(name):
            return None if getattr(last, name) is None else [x for chunk in chunks for x in getattr(chunk, name)]

        text, values = "".join(chunk.text for chunk in chunks), (all_of("logprobs"), all_of("top_logprobs"))
        return cls(prompt, text, all_of("token_ids"), last.finish_reason, *values, last.index, last.error)


@dataclass(frozen=True)
class Chunk:
    """A piece of a streamed answer: what came since the piece before. All texts together are Output.text."""

    text: str
    token_ids: list[int]
    logprobs: list[float] | None = None
    finish_reason: str | None = None  # set in the last chunk
    origins: list[str] | None = None  # by token: "bonus" (drawn by the target alone), "hit", "fallback" or "draft"
    pieces: list[str] | None = None  # of the text, by token
    top_logprobs: list[dict[int, float]] | None = None
    index: int = 0  # which of the samples of the prompt
    error: str | None = None  # what ended the answer, in the last chunk of one whose finish_reason is "error"
