"""Drafts that come with the package, one folder each, named after their targets."""

from pathlib import Path


def default_draft(target_name: str | Path, size: str = "") -> Path | None:
    """The folder of the draft for a target: its name, hub id or folder, of which the last part counts,
    without a revision. size: "large" for the larger one. None if none."""
    name = Path(str(target_name).rstrip("/")).name.partition("@")[0]
    folder = Path(__file__).parent / (f"{name}-{size}" if name and size else name)
    return folder if (folder / "config.json").is_file() else None
