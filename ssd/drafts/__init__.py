"""Drafts that come with the package, one folder for each target, named as the target is."""

from pathlib import Path


def default_draft(target: str) -> Path | None:
    """The folder of the draft for a target (its name or id), or None where none is shipped."""
    folder = Path(__file__).parent / Path(str(target)).name
    return folder if (folder / "config.json").is_file() else None
