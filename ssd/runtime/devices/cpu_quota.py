"""CPU time that the system grants this process: quotas of control groups."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def cpu_quota(root: str | Path = "/") -> float | None:
    """Cores' worth of CPU time: the least of the quotas on the way from this process's control groups (version 1 and 2)
    up to the root, None where none is set or can be read. root: of the file system, for tests."""
    read = {1: _version_1, 2: _version_2}
    quotas = [read[version](folder) for folder, version in control_groups(Path(root), "cpu")]
    return min((quota for quota in quotas if quota), default=None)


def control_groups(root: Path, controller: str) -> Iterator[tuple[Path, int]]:
    """The folders of this process's control groups with a controller, up to the root, each with its version."""
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if not controllers:
            places, version = ("", "unified"), 2
        elif controller in controllers.split(","):
            places, version = (controllers, controller), 1
        else:
            continue
        for place in dict.fromkeys(places):
            for step in ("", *_upwards(group)):  # a container may see its own group as the root of the tree
                yield root / "sys/fs/cgroup" / place / step, version


def _upwards(group: str) -> list[str]:
    path = PurePosixPath(group.lstrip("/"))
    return [str(p) for p in (path, *path.parents)]


def _version_2(folder: Path) -> float | None:
    quota, _, period = read_text(folder / "cpu.max").partition(" ")
    return _ratio(quota, period)


def _version_1(folder: Path) -> float | None:
    return _ratio(read_text(folder / "cpu.cfs_quota_us"), read_text(folder / "cpu.cfs_period_us"))


def _ratio(quota: str, period: str) -> float | None:
    """None for "max", -1, and what is no number."""
    try:
        return int(quota) / int(period) if int(quota) > 0 else None
    except (ValueError, ZeroDivisionError):
        return None


def read_text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
