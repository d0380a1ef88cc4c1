"""From token ids to text that a reader may see: whole characters, and nothing that a stop string would take back."""


class TextStream:
    """The text of one request as it grows.

    detokenizer: add(id) -> str returns the text that a token completes, finish() -> str what is left at the end.
    The text ends before the stop string that is complete first (of several complete at the same character, the
    longest). That is a property of the text alone, so the result does not depend on the pieces it came in.
    """

    def __init__(self, detokenizer, stop: tuple[str, ...] = ()):
        self._detokenizer = detokenizer
        self._stop = stop
        self._held = ""  # the beginning of a stop string, perhaps
        self.stopped = False

    def add(self, token: int) -> str:
        """The text that token releases. After a stop string (stopped is then True) nothing is released any more."""
        return self._release(self._detokenizer.add(token))

    def finish(self) -> str:
        """What is left when no further token comes."""
        text = self._release(self._detokenizer.finish())
        if not self.stopped:
            text, self._held = text + self._held, ""
        return text

    def _release(self, piece: str) -> str:
        if not self._stop:
            return piece
        if self.stopped:
            return ""
        text = self._held + piece
        found = [(at + len(s), at) for s in self._stop if (at := text.find(s)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)[1]]
        keep = next(
            n
            for n in range(min(len(text), self._longest() - 1), -1, -1)
            if n == 0 or any(s.startswith(text[-n:]) for s in self._stop)
        )
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def _longest(self) -> int:
        return max(map(len, self._stop))
