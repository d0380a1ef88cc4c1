"""Whether systems that compute in the same precision emit the same tokens."""

from itertools import combinations, takewhile


def agreement(texts: dict[tuple, list[list[int]]]) -> list[dict]:
    """A row for each pair of configurations (system, mode, precision) of one precision, given their tokens by prompt.

    Keys: precision, a, b, modes, prompts, same (share of prompts with equal tokens), same_tokens (mean share of a text
    before the first difference). Greedy texts of different arithmetic diverge for good at the first near tie.
    """
    pairs = []
    for (a, mine), (b, other) in combinations(texts.items(), 2):
        if a[2] == b[2] and mine:
            shares = [_common(x, y) / max(len(x), len(y)) for x, y in zip(mine, other, strict=True)]
            pair = {"precision": a[2], "a": f"{a[0]} {a[1]}", "b": f"{b[0]} {b[1]}", "modes": f"{a[1]}, {b[1]}"}
            pair |= {"prompts": len(mine), "same": sum(s == 1 for s in shares) / len(mine)}
            pairs.append(pair | {"same_tokens": sum(shares) / len(mine)})
    return pairs


def _common(a: list[int], b: list[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))
