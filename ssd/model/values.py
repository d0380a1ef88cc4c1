"""Values of configuration files, checked by type and range."""

import json
from pathlib import Path
from reprlib import Repr

from ..text_files import read_text

MOST = 2**31 - 1
_repr = Repr()
_repr.maxlevel, _repr.maxstring, _repr.maxother, _repr.maxlong = 2, 80, 80, 40


def show(value) -> str:
    """A value in an error message, shortened to a few words."""
    return _repr.repr(value)


def read_json(path: Path) -> dict:
    """The object in a JSON file. Raises ValueError that names the file."""
    text = read_text(path)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise ValueError(f"{path} is not valid JSON: {e}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: got a {type(content).__name__}, wanted an object")
    if "\\ud" in text.lower() and any("\ud800" <= char <= "\udfff" for char in json.dumps(content, ensure_ascii=False)):
        raise ValueError(f"{path} holds half a surrogate pair, wanted Unicode text")
    return content


def present(fields: dict, name: str, default=None):
    """The value of a field, or the default where it is null or absent. Raises ValueError where there is neither."""
    value = default if fields.get(name) is None else fields[name]
    if value is None:
        raise ValueError(f"{name} is missing")
    return value


def whole(fields: dict, name: str, default: int | None = None, most: int = MOST) -> int:
    """A whole number from 1 to most. Raises ValueError."""
    value = present(fields, name, default)
    if type(value) is not int or not 1 <= value <= most:
        raise ValueError(f"{name}: got {show(value)}, wanted a whole number of at least 1 and at most {most}")
    return value


def number(fields: dict, name: str, default: float | None = None, most: float = 1e38) -> float:
    """A positive number, at most `most`. Raises ValueError."""
    value = present(fields, name, default)
    if type(value) not in (int, float) or not 0 < value <= most:
        raise ValueError(f"{name}: got {show(value)}, wanted a positive number, at most {most:g}")
    return float(value)


def boolean(fields: dict, name: str, default: bool = False) -> bool:
    """Raises ValueError for a value that is neither true nor false."""
    value = present(fields, name, default)
    if type(value) is not bool:
        raise ValueError(f"{name}: got {show(value)}, wanted true or false")
    return value


def ids(fields: dict, name: str) -> tuple[int, ...]:
    """Token ids, one or a list of them; none where the field is null or absent. Raises ValueError."""
    value = fields.get(name)
    found = [] if value is None else value if isinstance(value, list) else [value]
    if any(type(token) is not int for token in found):
        raise ValueError(f"{name}: got {show(value)}, wanted whole numbers")
    return tuple(found)
