"""The chance that the target accepts a token, learnt from every round."""

BINS = 16


class Calibration:
    """From the draft's confidence in a token to the chance that the target accepts it, given its parent.

    One exponential mean for each bin of confidence, for first choices, for later ones, for first choices that the text
    had in the same place before too, and for tokens that only the text had. Starts at the confidence itself, a little
    lowered, and for the last at a quarter of what is left.
    """

    FIRST, LATER, AGREED, ECHOED = range(4)

    def __init__(self, rate: float = 0.05):
        self.rate = rate
        confidence = [(b + 0.5) / BINS for b in range(BINS)]
        self.table = [[0.9 * c for c in confidence] for _ in range(3)]
        self.table.append([0.25 * (1 - c) for c in confidence[::2] * 2])  # by context and the confidence in another

    @staticmethod
    def bin(confidence: float) -> int:
        return min(int(confidence * BINS), BINS - 1)

    def chance(self, where: tuple[int, int]) -> float:
        """where: (bin, row)."""
        return self.table[where[1]][where[0]]

    def rank(self, tokens: list[int], confidence: list[float], width: int, echoed: list[tuple[int, int]]):
        """[(chance, token, where)] of a node's children: the draft's `width` best in their order; or with the first
        of what the text had there (ContextLookup.after), best first."""
        agrees = bool(echoed) and echoed[0][0] == tokens[0]
        rows = [self.AGREED if agrees else self.FIRST] + [self.LATER] * (width - 1)
        found = [(t, (self.bin(c), row)) for t, c, row in zip(tokens, confidence, rows, strict=False) if t >= 0]
        for token, length in echoed[:1]:
            if all(t != token for t, _ in found):
                found.append((token, (self.bin(confidence[0]) // 2 + BINS // 2 * (length - 1), self.ECHOED)))
        ranked = [(self.chance(where), t, where) for t, where in found]
        return sorted(ranked, key=lambda x: -x[0]) if echoed else ranked

    def update(self, where: tuple[int, int], accepted: bool) -> None:
        row = self.table[where[1]]
        row[where[0]] += self.rate * (accepted - row[where[0]])
