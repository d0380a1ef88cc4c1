"""The prompts that benchmarks decode, and the names that their options take."""

from pathlib import Path

from ssd.cli.jsonl import read_lines

PROMPTS = Path(__file__).parent / "prompts"


def read_workloads(files: list[str], limit: int | None) -> dict[str, list[str]]:
    """The prompts of each file, by workload, which is the file's stem. Raises ValueError that names file and line."""
    workloads = {}
    for file in map(Path, files):
        lines = read_lines(file)[:limit]
        if wrong := [where for where, line in lines if not isinstance(line.get("prompt"), str)]:
            raise ValueError(f"{wrong[0]}: has no `prompt` that is a text")
        if not lines:
            raise ValueError(f"{file}: holds no prompt")
        workloads[file.stem] = [line["prompt"] for _, line in lines]
    return workloads


def workloads_of(parser, args, folder: Path = PROMPTS) -> dict[str, list[str]]:
    """The workloads that --data and --limit name, or those in a folder. Files that cannot be read are an error of the
    parser."""
    try:
        return read_workloads(args.data or sorted(map(str, folder.glob("*.jsonl"))), args.limit)
    except (OSError, ValueError) as e:
        parser.error(f"--data: {e}")


def check_names(parser, option: str, names: list[str], known) -> None:
    if unknown := [name for name in names if name not in known]:
        parser.error(f"{option}: got {unknown[0]!r}, wanted some of {', '.join(known)}")
