"""What followed the same one or two tokens earlier in a text (prompt lookup; Saxena, 2023).

Where the target refuses the draft's first choice, it often takes this. Two tokens of context are enough for one more
candidate, and can be looked up below any node of a tree. ngram.py proposes whole continuations of the longest suffix,
behind the text only.
"""

KEPT = 3  # tokens remembered behind each context, newest first


class ContextLookup:
    """Bigram and unigram lookup in one text, which comes piece by piece."""

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
        """Pairs of a token and the length of the context that it followed before, for what comes behind the text and a
        path; longest context first."""
        last = (*self.last, *path)[-2:]
        found: dict[int, int] = {}
        for context in (last, last[-1:]):
            for token in self.next.get(context, ()) if context else ():
                found.setdefault(token, len(context))
        return list(found.items())
