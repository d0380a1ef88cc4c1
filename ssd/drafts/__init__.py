"""Drafts that come with the package, one folder each, named after their targets."""

from pathlib import Path


def default_draft(target_name: str | Path, size: str = "") -> Path | None:
    """The folder of the draft that comes with the package for a target, or None.

    target_name: name, hub id (with or without a revision) or folder; only its last part counts. size: "large" for the
    larger draft.
    """
    name = Path(str(target_name).rstrip("/")).name.partition("@")[0]
    folder = Path(__file__).parent / (f"{name}-{size}" if name and size else name)
    return folder if (folder / "config.json").is_file() else None
