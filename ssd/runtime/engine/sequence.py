"""One request while it is being served."""

from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np

from ..sampling.logits_processors import logits_processors_of
from ..sampling.logprobs import Logprobs
from ..sampling.sampling_params import SamplingParams
from ..sampling.text_stream import TextStream


@dataclass(eq=False)
class Sequence:
    """Tokens, pages and progress. tokens[:num_tokens] are known; the pages hold the KV of the first num_cached.

    The pass that brings num_cached to num_tokens samples the next token. So a decoding sequence has one known token
    (the root) whose KV is not stored yet, and a sequence that lost its pages starts again from num_cached = 0.
    """

    params: SamplingParams
    seed: int
    tokens: np.ndarray  # int64 [prompt_len + the most new tokens that it may get]
    prompt_len: int
    stream: TextStream
    num_tokens: int
    num_cached: int = 0
    pages: list[int] = field(default_factory=list)
    page_row: np.ndarray | None = None  # int32 [pages]
    slots: np.ndarray | None = None  # int64 [pages * page_size]: physical slot of each index
    digests: list[bytes] = field(default_factory=list)  # of the first blocks, as far as anybody asked
    preempted: bool = False  # at least once
    pieces: list[str] = field(default_factory=list)  # text released by each sampled token
    logits_processors: list = field(default_factory=list)  # what changes its logits, see logits_processors.py
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[dict[int, float]] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)  # by sampled token: "bonus", or the origin of its Tree
    finish_reason: str | None = None  # "stop", "length" or "error"
    error: str | None = None  # what ended it, in one sentence
    index: int = 0  # which of the samples of its prompt

    @classmethod
    def start(
        cls, prompt_ids, max_tokens: int, params: SamplingParams, seed: int, stream: TextStream, index=0
    ) -> "Sequence":
        tokens = np.empty(len(prompt_ids) + max_tokens, np.int64)
        tokens[: len(prompt_ids)] = prompt_ids
        processors = logits_processors_of(params, tokens[: len(prompt_ids)], max_tokens)
        size = len(prompt_ids)
        return cls(params, seed, tokens, size, stream, size, logits_processors=processors, index=index)

    @property
    def answer(self) -> np.ndarray:
        """The tokens sampled so far."""
        return self.tokens[self.prompt_len : self.num_tokens]

    @property
    def token_ids(self) -> list[int]:
        return self.answer.tolist()

    @property
    def decoding(self) -> bool:
        """Whether only the root is left to compute, so that the next pass gives a token for one row."""
        return bool(self.pieces) and self.num_tokens - self.num_cached == 1

    def take_pages(self, pages: list[int], page_size: int) -> None:
        self.pages = pages
        self.page_row = np.asarray(pages, np.int32)
        self.slots = (self.page_row[:, None].astype(np.int64) * page_size + np.arange(page_size)).ravel()

    def drop_pages(self) -> list[int]:
        """Give up the pages, which are returned; their KV is to be computed again."""
        pages, self.pages, self.num_cached = self.pages, [], 0
        return pages

    def digest(self, block: int, page_size: int) -> bytes:
        """128 bits that name a block by its page_size tokens, all of them known, and those of all blocks before."""
        while len(self.digests) <= block:
            begin = len(self.digests) * page_size
            before = self.digests[-1] if self.digests else b""
            tokens = self.tokens[begin : begin + page_size].tobytes()
            self.digests.append(blake2b(before + tokens, digest_size=16).digest())
        return self.digests[block]

    def fail(self, error: str) -> None:
        """End the request: no pass can be made for it."""
        self.finish_reason, self.error = "error", error

    def append(self, token: int, logprobs: Logprobs | None, eos_ids: frozenset[int], origin: str = "bonus") -> None:
        """Add a token with the text that it releases, and end the request where this token is the last."""
        self.tokens[self.num_tokens] = token
        self.num_tokens += 1
        if self.params.logprobs:
            own, likeliest = logprobs
            self.logprobs.append(own)
            self.top_logprobs.append(likeliest)
        ends = token in self.params.ends(eos_ids)
        piece = "" if ends else self.stream.add(token)
        full = self.num_tokens == len(self.tokens)
        if (ends or full) and not self.stream.stopped:
            piece += self.stream.finish()
        self.pieces.append(piece)
        self.origins.append(origin)
        if ends or self.stream.stopped:
            self.finish_reason = "stop"
        elif full:
            self.finish_reason = "length"
