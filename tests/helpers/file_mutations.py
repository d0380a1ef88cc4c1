"""Model files with one thing wrong: values of other types, deep nesting, other encodings, bytes that changed."""

import json
import random

DEEP = json.loads("[" * 60 + "]" * 60)
ODD = [
    None, True, False, 0, -1, 1, 2, 7, 2**31, 2**63, 2**70, 0.5, -1.5, 1e308, float("nan"), float("inf"), "",
    "x", "ä\n", "\ud800", "1", "null", [], {}, [None], [[]], {"a": None}, {"content": 3}, DEEP, "x" * 5000, [0, "a"],
    {"": {}},
]  # fmt: skip


def nodes(value, path=()):
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from nodes(value[key], (*path, key))
    elif isinstance(value, list):
        for i, item in enumerate(value[:20]):
            yield from nodes(item, (*path, i))


def changed_json(text: str, rng: random.Random) -> str:
    """The text with one value replaced, taken away or given another name."""
    value = json.loads(text)
    path = rng.choice(list(nodes(value)))
    if not path:
        return json.dumps(rng.choice(ODD))
    parent = value
    for part in path[:-1]:
        parent = parent[part]
    how = rng.random()
    if how < 0.7:
        parent[path[-1]] = rng.choice(ODD)
    elif how < 0.85:
        del parent[path[-1]]
    elif isinstance(parent, dict):
        parent[path[-1] + rng.choice(("x", " ", "\ud800"))] = parent.pop(path[-1])
    else:
        parent.append(parent[path[-1]])
    return json.dumps(value)


def changed_bytes(data: bytes, rng: random.Random, size: int | None = None) -> bytes:
    """The data with a few of its first `size` bytes changed, taken out, doubled, or cut off."""
    size = min(size or len(data), len(data))
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        if not data:
            break
        at, n = rng.randrange(size), rng.choice((1, 1, 2, 4, 8, 20))
        new = rng.choice((rng.randbytes(n), b"\xff" * n, bytes(n), bytes([data[at] ^ 1 << rng.randrange(8)])))
        how = rng.random()
        if how < 0.75:
            data = data[:at] + new + data[at + len(new) :]
        elif how < 0.85:
            data = data[:at] + data[at + n :]
        elif how < 0.95:
            data = data[:at] + data[at : at + n] + data[at:]
        else:
            data = data[:at]
        size = max(1, min(size, len(data)))
    return data


def encoded(text: str, rng: random.Random) -> bytes:
    encoding = rng.choice(("utf-8-sig", "utf-16", "utf-32", "utf-16-be", "latin-1", "cp1252", "utf-7"))
    return text.encode(encoding, errors="replace")


def deeply_nested(text: str, rng: random.Random) -> str:
    """The text with a value that is nested thousands of times."""
    depth, value = rng.choice((500, 2000, 100_000)), json.loads(text)
    key = rng.choice([*value, "more"]) if isinstance(value, dict) else "more"
    return json.dumps({**value, key: "@"}).replace('"@"', "[" * depth + "]" * depth)
