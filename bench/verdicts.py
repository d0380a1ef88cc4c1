"""What the parts of bench.gpu_check have measured, and whether it is right.

A verdict reads what its part wrote to a folder and returns a few words; it raises Wrong where something is wrong.
"""

import json
import statistics
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ALIKE = 4  # first tokens that are the CPU's; later ones may be others, since sums are rounded in another order


class Wrong(Exception):
    """What is wrong, in a few words."""


def read(out: Path, name: str) -> dict:
    try:
        return json.loads((out / f"{name}.json").read_text())
    except (OSError, ValueError):
        raise Wrong(f"{name}.json was not written") from None


def number(x: float | None, form: str = ".2f") -> str:
    return "none" if x is None else format(x, form)


def answer(out: Path, name: str) -> tuple[list[int], dict]:
    """The tokens and the statistics of a run of ssd.run."""
    found = read(out, name)
    return found["outputs"][0]["token_ids"], found["stats"]


def same_start(a: list, b: list) -> int:
    """How many first tokens are the same."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def answered(out: Path, name: str) -> str:
    """There is an answer, and no draft lane was given up for it."""
    tokens, stats = answer(out, name)
    told = f"{len(tokens)} tokens, {number(stats['tokens_per_second'], '.1f')} tokens/s"
    if not tokens:
        raise Wrong("no tokens")
    if lost := stats["recoveries"]["rollback"]["count"]:
        raise Wrong(f"the draft lane was given up {lost} times; {told}")
    return told


def plain(out: Path) -> str:
    """Plain decoding begins as on the CPU."""
    tokens, reference = answer(out, "ar")[0], answer(out, "reference")[0]
    alike = same_start(tokens, reference)
    told = f"{answered(out, 'ar')}, the first {alike} as on the CPU"
    if alike < min(ALIKE, len(reference)):
        raise Wrong(told)
    return told


def speculated(out: Path, mode: str) -> str:
    """A mode that speculates has the tokens of plain decoding."""
    (wanted, _), (tokens, stats) = answer(out, "ar"), answer(out, mode)
    if tokens != wanted:
        raise Wrong(f"token {same_start(tokens, wanted)} is not that of ar")
    rates = [f"{name.replace('_', ' ')} {number(stats[name])}" for name in ("acceptance_rate", "hit_rate")]
    chosen = [f"chose {stats['mode']}"] if "mode" in stats else []
    return ", ".join(["the tokens of ar", answered(out, mode), *rates, *chosen])


def exact(out: Path) -> str:
    found = read(out, "exact")
    told = f"{found['compared']} answers of {found['tokens']} tokens compared, {found['differences']} differ"
    if found["differences"] or not found["tokens"]:
        raise Wrong(told)
    return told


def hit_rate(out: Path) -> str:
    rows = read(out, "hit_rate")["rows"]
    live = [row["hit_rate_realtime"] for row in rows if row["hit_rate_realtime"] is not None]
    mean = statistics.fmean(row["hit_rate"] or 0 for row in rows)
    told = f"hit rate {mean:.2f} in lockstep, {number(statistics.fmean(live) if live else None)} in real time"
    if not mean:
        raise Wrong(told)
    return told


def operators(out: Path) -> str:
    """Every kernel is right; how many times as long others take, as a median."""
    found = read(out, "operators")
    rows = found["rows"]
    bad = [row for row in rows if not row.get("check")]
    if bad or not rows:
        first = f": {bad[0]['op']} {bad[0]['backend']} {bad[0]['shape']}: {bad[0].get('error', 'wrong')}" if bad else ""
        raise Wrong(f"{len(bad)} of {len(rows)} kernels are wrong{first}")
    ratios, refused = {}, set()
    for row in rows:
        refused |= row["refused"].keys()
        for name, ratio in row["baselines"].items():
            ratios.setdefault(f"{row['op']} ({row['backend']}) against {name}", []).append(ratio)
    told = [f"{name} {statistics.median(values):.2f}" for name, values in ratios.items()]
    told += [f"{name} refused" for name in sorted(refused)] + [f"{n} not installed" for n in found.get("missing", [])]
    return f"{len(rows)} right; times as fast: {', '.join(told)}"


def synthetic(out: Path) -> str:
    rows = read(out, "synthetic")["rows"]
    told = "; ".join(
        f"{row['mode']} {row['tokens_per_second']:.1f} tokens/s ({row['speedup']:.2f}, {row['gb_per_s']:.0f} GB/s, "
        f"hit rate {number(row['hit_rate'])}), first run {row['first_seconds']:.0f} s"
        for row in rows
    )
    if not all(row["right"] for row in rows):
        raise Wrong(f"a token is wrong; {told}")
    if any(row["rollbacks"] for row in rows):
        raise Wrong(f"the draft lane was given up; {told}")
    return told


def tests(out: Path, name: str) -> str:
    """The counts of a junit file; tests that were all skipped show nothing."""
    try:
        suite = ElementTree.parse(out / f"{name}.xml").getroot().find("testsuite")
    except (OSError, ElementTree.ParseError):
        raise Wrong(f"{name}.xml was not written") from None
    count = {key: int(suite.get(key)) for key in ("tests", "failures", "errors", "skipped")}
    passed = count["tests"] - count["failures"] - count["errors"] - count["skipped"]
    told = f"{passed} passed, {count['failures'] + count['errors']} failed, {count['skipped']} skipped"
    if count["failures"] or count["errors"] or not passed:
        raise Wrong(told)
    return told
