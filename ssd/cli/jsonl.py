"""Files of JSON objects, one a line."""

import json
from pathlib import Path


def read_lines(path: str | Path) -> list[tuple[str, dict]]:
    """(where it stands, object) of every line that is not empty. Raises ValueError that names the file and line."""
    found = []
    for number, line in enumerate(Path(path).read_bytes().split(b"\n"), 1):
        if line.strip():
            where = f"{path} line {number}"
            try:
                value = json.loads(line.decode())
            except (ValueError, RecursionError):
                value = None
            if not isinstance(value, dict):
                raise ValueError(f"{where}: is not a JSON object")
            found.append((where, value))
    return found
