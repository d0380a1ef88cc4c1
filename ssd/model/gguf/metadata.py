"""The metadata of a GGUF file, checked by type."""

from pathlib import Path

from ..values import show

WORDS = {str: "a text", int: "a whole number", float: "a number", bool: "true or false", list: "an array"}


class Metadata:
    """Values by key. Raises ValueError that names the file and the key for one that is missing or of another type."""

    def __init__(self, path: Path, values: dict):
        self.path, self.values = path, values

    def get(self, key: str, kind: type, default=None):
        """A value of that kind, or the default where there is none; a whole number is a float too."""
        value = self.values.get(key, default)
        if value is None:
            raise ValueError(f"{self.path}: {key} is missing in its metadata")
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise ValueError(f"{self.path}: {key} is {show(value)}, wanted {WORDS[kind]}")
        return value

    def optional(self, key: str, kind: type):
        return self.get(key, kind) if key in self.values else None

    def array(self, key: str, kind: type, size: int | None = None) -> list:
        """An array with elements of that kind, of that size where one is given."""
        found = self.get(key, list)
        if not all(type(x) is kind for x in found):
            raise ValueError(f"{self.path}: {key} holds other values, wanted {WORDS[kind]} in every place")
        if size not in (None, len(found)):
            raise ValueError(f"{self.path}: {key} has {len(found)} entries, wanted {size}")
        return found
