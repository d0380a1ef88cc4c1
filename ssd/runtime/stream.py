"""The pieces of an answer as they come."""

from collections import deque

from .engine.sequence import Sequence
from .output import Chunk
from .turns import Turns


class Stream:
    """An iterator over the chunks of one answer, its samples side by side.

    Closing it, which the end of a `with` block does too, cancels the requests. So does letting go of it, at the next
    pass: a finaliser takes no lock, for the collector may run it inside a pass.
    """

    def __init__(self, turns: Turns, add, run_pass, sequences: list[Sequence]):
        self._turns, self._add, self._run_pass, self._sequences = turns, add, run_pass, sequences
        self._told = dict.fromkeys(range(len(sequences)), 0)  # tokens told, of the samples that go on
        self._chunks: deque[Chunk] = deque()
        self._started = False

    def __iter__(self) -> "Stream":
        return self

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def __next__(self) -> Chunk:
        try:
            while not self._chunks:
                if not self._told:
                    raise StopIteration
                self._advance()
        except BaseException:
            self.close()
            raise
        return self._chunks.popleft()

    def _advance(self) -> None:
        """Take over what came, after a pass if nothing did."""
        with self._turns.turn():
            if not self._started:
                self._started = True
                for sequence in self._sequences:
                    self._add(sequence)
            if all(len(self._sequences[i].pieces) == told for i, told in self._told.items()):
                self._run_pass()
            for i, told in list(self._told.items()):
                chunk = chunk_of(self._sequences[i], told)
                if chunk.token_ids or chunk.error:
                    self._chunks.append(chunk)
                if chunk.finish_reason:
                    del self._told[i]
                else:
                    self._told[i] += len(chunk.token_ids)

    def close(self) -> None:
        """Cancel the requests, whether they are done or not."""
        self._chunks.clear()
        self._told.clear()
        self._turns.cancel(self._sequences)

    def __del__(self):
        if self._told:
            self._turns.give_up(self._sequences)


def chunk_of(s: Sequence, told: int) -> Chunk:
    """The chunk that follows `told` tokens."""
    new = slice(told, len(s.pieces))
    logprobs, top = logprobs_of(s, new)
    text, ids, pieces = "".join(s.pieces[new]), s.token_ids[new], s.pieces[new]
    return Chunk(text, ids, logprobs, s.finish_reason, s.origins[new], pieces, top, s.index, s.error)


def logprobs_of(s: Sequence, part: slice = slice(None)) -> tuple[list | None, list | None]:
    """The log-probabilities of part of a sequence's tokens, and of the likeliest ones, where asked for."""
    return (
        s.logprobs[part] if s.params.logprobs else None,
        s.top_logprobs[part] if s.params.top_logprobs else None,
    )
