"""What followed the same one or two tokens earlier in a text: where the target refuses the draft's first choice, it
often takes that (prompt lookup; Saxena, 2023).

Two tokens are enough for one more candidate, and can be looked up below any node of a tree; ngram.py proposes whole
continuations, of the longest suffix, behind the text only.
"""

KEPT = 3  # tokens remembered behind each context, newest first


class ContextLookup:
    """Of one text, given piece by piece."""

    def __init__(self):
        self.size = 0
        self.last: tuple[int, ...] = ()  # two tokens
        self.next: dict[tuple[int, ...], list[int]] = {}

    def extend(self, tokens) -> None:
        for token in tokens:
            for context in (self.last, self.last[1:]):
                found = self.next.setdefault(context, [])
                if token in found:
                    found.remove(token)
                found.insert(0, token)
                del found[KEPT:]
            self.last = (*self.last[-1:], token)
            self.size += 1

    def after(self, path: list[int] = ()) -> list[tuple[int, int]]:
        """(token, length of the context that it followed) behind the text and a path, longest context first."""
        last = (*self.last, *path)[-2:]
        found: dict[int, int] = {}
        for context in (last, last[-1:]):
            for token in self.next.get(context, ()) if context else ():
                found.setdefault(token, len(context))
        return list(found.items())
