"""The chance that the target accepts a token, learnt from every round."""

BINS = 16  # of confidence


class Calibration:
    """From the draft's confidence in a token to the chance that the target accepts it, given its parent.

    One exponential average for each bin of confidence, in a table of rows: FIRST choices of the draft, LATER ones,
    first choices that the text had in the same context before (AGREED), and tokens that only the text had, behind one
    token (SHORT) or two (LONG) of context; these are binned by the draft's confidence in its own first choice. The
    averages start at the confidence, a little lowered, and for tokens of the text at a quarter of what is left.
    """

    FIRST, LATER, AGREED, SHORT, LONG = range(5)

    def __init__(self, rate: float = 0.05):
        self.rate = rate
        confidence = [(b + 0.5) / BINS for b in range(BINS)]
        self.table = [[0.9 * c for c in confidence] for _ in range(3)]
        self.table += [[0.25 * (1 - c) for c in confidence[::2]] for _ in range(2)]

    @staticmethod
    def bin(confidence: float) -> int:
        return min(int(confidence * BINS), BINS - 1)

    def chance(self, where: tuple[int, int]) -> float:
        """The chance of a token that stands in a bin of a row."""
        bin, row = where
        return self.table[row][bin]

    def rank(self, tokens: list[int], confidence: list[float], width: int, seen: list[tuple[int, int]]):
        """[(chance, token, (bin, row))] of a node's children: the draft's `width` best in their order, or where the
        text has something to say (`seen`, from ContextLookup.after) these and its first token, best first."""
        agrees = bool(seen) and seen[0][0] == tokens[0]
        rows = [self.AGREED if agrees else self.FIRST] + [self.LATER] * (width - 1)
        found = [(t, (self.bin(c), row)) for t, c, row in zip(tokens, confidence, rows, strict=False) if t >= 0]
        for token, length in seen[:1]:
            if all(t != token for t, _ in found):
                found.append((token, (self.bin(confidence[0]) // 2, self.SHORT if length == 1 else self.LONG)))
        ranked = [(self.chance(where), t, where) for t, where in found]
        return sorted(ranked, key=lambda x: -x[0]) if seen else ranked

    @staticmethod
    def suffix(length: int, rank: int, depth: int) -> tuple[int, int]:
        """(bin, row) of a token that an n-gram proposes: the longer the suffix that it followed, the surer it is.

        rank: of the continuation that it begins; depth: tokens of that continuation before it.
        """
        surer = 2 * max(length - 1, 0).bit_length()
        row = Calibration.LATER if rank and not depth else Calibration.FIRST
        return min(surer + (depth > 0), BINS - 1), row

    def update(self, where: tuple[int, int], accepted: bool) -> None:
        """Learn from a token whose parent was accepted."""
        bin, row = where
        self.table[row][bin] += self.rate * (accepted - self.table[row][bin])
