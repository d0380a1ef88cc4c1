"""Text files in any Unicode encoding; imports no model, so that the command line can use it."""

import json
from pathlib import Path


def decoded(data: bytes, errors: str = "strict") -> str:
    """Text in UTF-8, UTF-16 or UTF-32, with or without a byte order mark. Raises UnicodeDecodeError."""
    return data.decode(json.detect_encoding(data), errors)


def read_text(path: Path) -> str:
    """The text of a file. Raises ValueError that names the file if it is not Unicode."""
    try:
        return decoded(path.read_bytes())
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not Unicode text, wanted UTF-8") from None
