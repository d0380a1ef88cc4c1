"""Results as a JSON file that names the machine, and as a table to read."""

import json
import sys
from pathlib import Path

from ssd.cli.markdown import table

from .machine import describe

__all__ = ["table", "write"]


def write(path: str | None, rows: list[dict], **more) -> None:
    """Writes {"machine", "command", "rows", ...} to `path`, or nothing if path is None."""
    if path:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        script = Path(sys.argv[0])
        module = script.parent.name if script.stem == "__main__" else script.stem
        command = " ".join([f"python -m bench.{module}", *sys.argv[1:]])
        Path(path).write_text(
            json.dumps({"machine": describe(), "command": command, "rows": rows, **more}, indent=1) + "\n"
        )
