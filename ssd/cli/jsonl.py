"""Files with one JSON object on each line."""

import json
from pathlib import Path

from ssd.text_files import decoded


def read_lines(path: str | Path) -> list[tuple[str, dict]]:
    """The objects of the lines that are not empty, each as (file and line, object). Raises ValueError."""
    found = []
    try:
        text = decoded(Path(path).read_bytes(), errors="surrogateescape")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not Unicode text, wanted UTF-8") from None
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            where = f"{path} line {number}"
            try:
                value = json.loads(line.encode())  # which refuses bytes that were no text
            except (ValueError, RecursionError):
                value = None
            if not isinstance(value, dict):
                raise ValueError(f"{where}: is not a JSON object")
            found.append((where, value))
    return found
