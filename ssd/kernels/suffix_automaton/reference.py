def follow(tokens: list[int], width: int, limit: int) -> tuple[int, list[list[int]]]:
    """Compares suffixes, the longest first, with every place of the text, the newest first."""
    size = len(tokens)
    for length in range(size - 1, 0, -1):
        suffix = tokens[size - length :]
        ends = [e for e in range(size - 1, length - 1, -1) if tokens[e - length : e] == suffix]
        if ends:
            newest = {}
            for end in ends:
                newest.setdefault(tokens[end], end)
            found = list(newest.values())[:width]
            return length, [[tokens[e + i % (size - e)] for i in range(limit)] for e in found]
    return 0, []
