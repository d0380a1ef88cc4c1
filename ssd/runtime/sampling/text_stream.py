"""From token ids to text that a reader may see: whole characters, and nothing that a stop string would take back."""


class TextStream:
    """The text of one request as it grows.

    detokenizer: a Detokenizer. The text ends before the stop string that is complete first (of several complete at the
    same character, the longest). That is a property of the text alone, so the result does not depend on the pieces it
    came in. Special tokens, which the text leaves out, count as their text in the search. Stop strings that the first
    min_tokens tokens complete are ignored; one that is completed later may begin in them.
    """

    def __init__(self, detokenizer, stop: tuple[str, ...] = (), min_tokens: int = 0):
        self._detokenizer = detokenizer
        self._stop = stop
        self._tokens_before_search = min_tokens
        self._held = ""  # perhaps the beginning of a stop string
        self._visible: list[bool] = []  # for each character held; False in special tokens
        self.stopped = False

    def add(self, token: int) -> str:
        """The text that token releases. After a stop string (stopped is then True) nothing is released any more."""
        self._tokens_before_search -= 1
        if self._stop and (hidden := self._detokenizer.hidden(token)):
            return self._release(hidden, visible=False)
        return self._release(self._detokenizer.add(token))

    def finish(self) -> str:
        """What is left when no further token comes."""
        text = self._release(self._detokenizer.finish())
        if not self.stopped:
            text += self._cut(self._held, len(self._held))
        return text

    def _release(self, piece: str, visible: bool = True) -> str:
        if not self._stop:
            return piece
        if self.stopped:
            return ""
        text, known = self._held + piece, len(self._held)
        self._visible += [visible] * len(piece)
        found = [(at + len(s), at) for s in self._stop if (at := text.find(s, max(0, known - len(s) + 1))) >= 0]
        if found and self._tokens_before_search < 0:
            self.stopped = True
            return self._cut(text, min(found)[1])
        keep = next(
            n
            for n in range(min(len(text), self._longest() - 1), -1, -1)
            if n == 0 or any(s.startswith(text[-n:]) for s in self._stop)
        )
        return self._cut(text, len(text) - keep)

    def _cut(self, text: str, size: int) -> str:
        """Hold what comes after so many characters. Returns the visible ones before."""
        shown = "".join(char for char, visible in zip(text[:size], self._visible, strict=False) if visible)
        self._held, self._visible = text[size:], self._visible[size:]
        return shown

    def _longest(self) -> int:
        return max(map(len, self._stop))
