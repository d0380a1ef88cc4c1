"""Pictures of the results, drawn beside their JSON files where matplotlib is installed.

`python -m bench.plots linear.json` draws a file again; its name says which picture. `python -m bench.plots trace.json`
draws what `python -m ssd.run --mode ssd --trace trace.json` wrote.
"""

import argparse
import importlib.util
import json
import logging
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

from ssd.cli.command import guarded

# Colours of Okabe and Ito, which colour-blind readers tell apart.
BLUE, RED, GREEN, PINK, ORANGE, SKY = CYCLE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
GREY = "#999999"
NAMES = {"llama_cpp": "llama.cpp", "ctranslate2": "CTranslate2", "openvino": "OpenVINO", "humaneval": "HumanEval"}
NAMES |= {"gsm8k": "GSM8K", "lookup": "prompt lookup", "ar": "plain"}


def beside(path: str | None, draw: Callable, rows: list[dict], name: str = "") -> None:
    """Draw rows into the PNG beside the JSON file, `name` behind its own, if there is anything to draw with."""
    if not path or not rows:
        return
    try:
        import matplotlib
    except ImportError:
        logging.getLogger(__name__).warning("no plot: matplotlib is not installed")
        return
    matplotlib.use("Agg")
    figure = draw(rows)
    if figure:
        figure.savefig(Path(path).with_name(f"{Path(path).stem}{name}.png"), dpi=120, bbox_inches="tight")


def panels(title: str, rows: int, columns: int = 1, size: tuple[float, float] = (8, 3.2), **sharing):
    """A figure and its axes [rows, columns], each of that size in inches."""
    import matplotlib.pyplot as plt

    sharing |= {"figsize": (size[0] * columns, size[1] * rows), "squeeze": False, "layout": "constrained"}
    figure, axes = plt.subplots(rows, columns, **sharing)
    figure.suptitle(title, fontsize=11)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def groups(rows: list[dict], *names: str) -> dict[tuple, list[dict]]:
    found: dict[tuple, list[dict]] = {}
    for row in rows:
        found.setdefault(tuple(row[n] for n in names), []).append(row)
    return found


def named(*words: str) -> str:
    return " ".join(NAMES.get(word, word) for word in words)


def counted(cores: int | None) -> str:
    return f"{cores} core{'s' * (cores > 1)}" if cores else ""


def head(axis, *words: str, **more) -> None:
    axis.set_title(", ".join(filter(None, words)), fontsize=10)
    axis.set(**more)


def lines(axis, series: dict[str, list[tuple[float, float]]], names=None, top=None, label=True) -> None:
    """Points (x, y) of each series as a line with its name at the right end, moved where names would overlap; x in
    powers of two, y from 0 to `top`. names: of all series of the picture, in the order of their colours."""
    colours = dict(zip(dict.fromkeys(names or series), CYCLE, strict=False))
    for name, points in series.items():
        axis.plot(*zip(*sorted(points), strict=True), marker="o", ms=3.5, color=colours[name])
    ticks = sorted({x for points in series.values() for x, _ in points})
    axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, [f"{x:g}" for x in ticks])
    axis.minorticks_off()
    top, above = top or 1.05 * max(y for points in series.values() for _, y in points), float("-inf")
    axis.set_ylim(0, top)
    for (x, y), name in sorted((max(points), name) for name, points in series.items() if label):
        above = max(y, above + 0.09 * top)
        style = {"textcoords": "offset points", "va": "center", "annotation_clip": False}
        axis.annotate(name, (x, above), (8, 0), color=colours[name], **style)


def key(figure, colours: dict[str, str]) -> None:
    """Words in the colours that they stand for, in a row below the picture."""
    for i, (word, colour) in enumerate(colours.items()):
        figure.text((i + 0.5) / len(colours), -0.01, word, color=colour, ha="center", va="top", weight="bold")


def linear(rows: list[dict]):
    """Time of a pass by rows of the input: a column for each shape, a row of panels for each number of cores."""
    shapes, cores = list(groups(rows, "shape")), list(groups(rows, "cores"))
    figure, axes = panels("linear layers: time of a pass by its rows", len(cores), len(shapes), (3.6, 2.8))
    for (shape, n), part in groups(rows, "shape", "cores").items():
        axis, formats = axes[cores.index((n,)), shapes.index((shape,))], groups(part, "format").items()
        times = {name: [(r["rows"], r["microseconds"] / 1e3) for r in line] for (name,), line in formats}
        lines(axis, times, [r["format"] for r in rows])
        head(axis, shape, counted(n), xlabel="rows", ylabel="milliseconds")
    return figure


def hit_rate(rows: list[dict]):
    """Hit rate against fan-out in lockstep, one panel for each workload: the coupled rule at the lowest temperature,
    every rule at the highest."""
    width, temperatures = min(r.get("tree_width", 1) for r in rows), [r["temperature"] for r in rows]
    shown = [("coupled", min(temperatures))]
    shown += [(rule, max(temperatures)) for rule in ("coupled", "rejection", "saguaro") if max(temperatures)]
    by_workload = groups([r for r in rows if r.get("tree_width", 1) == width], "workload")
    figure, axes = panels("outcomes that were prepared for", 1, len(by_workload), (3.4, 3.2), sharey=True)
    for axis, ((workload,), part) in zip(axes[0], by_workload.items(), strict=True):
        found = groups(part, "verify", "temperature")
        names = {(rule, t): f"{rule}, temperature {t:g}" for rule, t in shown}
        points = {names[k]: [(r["fan_out"], r["hit_rate"]) for r in found[k]] for k in names if k in found}
        lines(axis, points, names.values(), top=1, label=axis is axes[0][-1])
        head(axis, named(workload), xlabel="candidates below every node")
    axes[0][0].set_ylabel("hit rate")
    return figure


def kernels(rows: list[dict]):
    """How near the operators come to the roofline: a dot for each shape, a bar at their median."""
    found = groups([{"cores": None} | r for r in rows if "error" not in r], "op", "backend", "cores")
    several = len({backend for _, backend, _ in found}) > 1
    size, labels, operators = (8, 0.36 * len(found) + 1), [], list(dict.fromkeys(op for op, *_ in found))
    figure, ((axis,),) = panels("share of the measured roofline, a dot for each shape", 1, size=size)
    for y, ((op, backend, cores), line) in enumerate(sorted(found.items(), key=lambda x: operators.index(x[0][0]))):
        share = [r["roofline_fraction"] for r in line]
        colour, middle = BLUE if operators.index(op) % 2 else RED, statistics.median(share)
        axis.plot(share, [y] * len(share), "o", ms=5, alpha=0.35, color=colour, markeredgewidth=0)
        axis.plot([middle] * 2, [y - 0.35, y + 0.35], color=colour, linewidth=2)
        labels.append(", ".join(filter(None, [op, backend * several, counted(cores)])))
    axis.axvline(1, color=GREY, linewidth=0.8, zorder=0)
    axis.set_yticks(range(len(labels)), labels)
    axis.set(xlabel="share of the roofline (bar: median)", xlim=0, ylim=(len(labels) - 0.4, -0.6))
    return figure


def decode(rows: list[dict]):
    """Tokens per second by workload: the fastest mode of every system and precision, or all modes of one system."""
    alone = len(groups(rows, "system")) == 1
    what = ("mode" if alone else "system", "precision")
    cores, workloads, bars = (list(groups(rows, *names)) for names in (["cores"], ["workload"], what))
    title = f"tokens per second, batch 1, greedy{'' if alone else ': fastest mode of each system and precision'}"
    size = (3.4, 0.3 * len(bars) + 0.9)
    figure, axes = panels(title, len(cores), len(workloads), size, sharex=True, sharey=True)
    for (n, workload, *name), those in groups(rows, "cores", "workload", *what).items():
        axis, y = axes[cores.index((n,)), workloads.index((workload,))], bars.index(tuple(name))
        best = max(those, key=lambda r: r["tokens_per_second"]["median"])
        middle, least, most = (best["tokens_per_second"][key] for key in ("median", "min", "max"))
        axis.barh(y, middle, 0.7, color=BLUE if best["system"] == "ssd" else GREY)
        axis.plot([least, most], [y, y], color="black", linewidth=0.8)
        mode = "" if alone or best["mode"] == "ar" else named(best["mode"])
        axis.text(most, y, f" {middle:.0f} {mode}", va="center", fontsize=8)
        head(axis, named(workload), counted(n))
    axes[0][0].set_yticks(range(len(bars)), [named(*name) for name in bars])
    axes[0][0].set(ylim=(len(bars) - 0.4, -0.6), xlim=(0, 1.3 * max(r["tokens_per_second"]["max"] for r in rows)))
    return figure


def speed_up(rows: list[dict]):
    """How many times as fast as the same system's plain decoding: mean over workloads, and the least and greatest."""
    rows = [r for r in rows if r.get("speed_up") and r["mode"] != "ar"]
    if not rows:
        return None
    by_cores, bars = groups(rows, "cores"), list(groups(rows, "system", "precision", "mode"))
    size, title = (8, 0.28 * len(bars) + 1), "what speculation brings: speed over the same system's plain decoding"
    figure, axes = panels(title, len(by_cores), size=size, sharex=True)
    for axis, ((cores,), part) in zip(axes[:, 0], by_cores.items(), strict=True):
        for name, those in groups(part, "system", "precision", "mode").items():
            y, ratios = bars.index(name), [r["speed_up"] for r in those]
            mean = statistics.geometric_mean(ratios)
            axis.barh(y, mean - 1, 0.7, left=1, color=BLUE if mean >= 1 else ORANGE)
            axis.plot([min(ratios), max(ratios)], [y, y], color="black", linewidth=0.8)
            axis.text(max(*ratios, 1), y, f" {mean:.2f}", va="center", fontsize=8)
        axis.axvline(1, color="black", linewidth=0.8)
        axis.set_yticks(range(len(bars)), [named(*name) for name in bars])
        head(axis, counted(cores), xlabel="times as fast", ylim=(len(bars) - 0.4, -0.6))
    return figure


def accepted(rows: list[dict]):
    """Tokens of a round by the most that a speculation may have: a line for each workload."""
    rows = [r | dict(zip(("kind", "k"), r["mode"].split(":"), strict=True)) for r in rows if ":" in r["mode"]]
    if not rows:
        return None
    parts = groups(rows, "kind", "precision", "cores")
    figure, axes = panels("accepted length, bonus token included", 1, len(parts), (5, 3.4), sharey=True)
    for axis, ((kind, precision, cores), part) in zip(axes[0], parts.items(), strict=True):
        series = {}
        for r in part:
            length = r["counts"]["decode_tokens"] / r["counts"]["rounds"]
            series.setdefault(named(r["workload"]), []).append((int(r["k"]), length))
        lines(axis, series)
        head(axis, kind, precision, counted(cores), xlabel="tokens of a chain, K", ylabel="tokens a round")
    return figure


PARTS = {"target": ("target's pass", BLUE), "draft": ("drafting, or waiting for it", GREEN)}
PARTS |= {"verify": ("sampling", RED), "rest": ("all else", GREY)}


def split(rows: list[dict]):
    """What a round is spent on, mean over workloads, one panel for each number of cores."""
    rows = sorted((r for r in rows if r.get("counts")), key=lambda r: r["precision"])
    if not rows:
        return None
    by_cores, size = groups(rows, "cores"), (8, 0.28 * len(groups(rows, "mode", "precision")) + 0.8)
    figure, axes = panels("time of a round, mean over workloads", len(by_cores), size=size, sharex=True)
    for axis, ((cores,), part) in zip(axes[:, 0], by_cores.items(), strict=True):
        modes = groups(part, "precision", "mode")
        labels, below = [named(*m) for m in modes], [0.0] * len(modes)
        for what, (_, colour) in PARTS.items():
            spent = [sum(spent_on(r["counts"])[what] for r in those) / len(those) for those in modes.values()]
            axis.barh(labels, spent, 0.7, left=below, color=colour)
            below = [a + b for a, b in zip(below, spent, strict=True)]
        axis.invert_yaxis()
        head(axis, counted(cores), xlabel="milliseconds")
    key(figure, dict(PARTS.values()))
    return figure


def spent_on(counts: dict) -> dict[str, float]:
    """Milliseconds of a decode pass; draft: or the wait for it, rest: the engine's own."""
    parts = {"draft": "draft", "target": "forward", "verify": "sample"}
    seconds = {name: counts[f"decode_{field}_seconds"] for name, field in parts.items()}
    seconds["rest"] = counts["decode_seconds"] - sum(seconds.values())
    return {name: 1e3 * s / max(counts["decode_passes"], 1) for name, s in seconds.items()}


STAGES = {"forward": BLUE, "verify": SKY, "update": SKY, "local retry": RED, "pass": GREEN}
MEANING = {"target's pass": BLUE, "sampling and update": SKY, "waiting for the draft": RED, "draft's pass": GREEN}


def trace(events: list[dict], rounds: int = 8):
    """Both lanes of a run with --trace over some rounds in its middle: stages as bars, publications as ticks, how each
    verification turned out as a word."""
    ends = sorted(e["ts"] for e in events if e["name"] in ("hit", "miss"))
    if len(ends) <= rounds:
        return None
    begin, end = ends[(len(ends) - rounds) // 2 :][::rounds][:2]
    figure, ((axis,),) = panels("two lanes: while the target verifies, the draft prepares", 1, size=(10, 1.9))
    last = end
    for e in events:
        if e["ph"] == "M" or not begin <= e["ts"] <= end:
            continue
        y, x = 2 - e["tid"], (e["ts"] - begin) / 1e3
        if e["name"] in STAGES and e["ts"] < end:
            last = max(last, e["ts"] + e["dur"])
            axis.barh(y, e["dur"] / 1e3, 0.55, left=x, color=STAGES[e["name"]], edgecolor="white", linewidth=0.4)
        elif e["name"] == "publish":
            axis.plot([x, x], [y + 0.3, y + 0.4], color="black", linewidth=1)
        elif e["name"] in ("hit", "miss"):
            axis.plot([x, x], [0.7, 1.33], color="black", linewidth=0.6, linestyle=":")
            axis.text(x, 1.4, e["name"], ha="center", fontsize=8, color=RED if e["name"] == "miss" else "black")
    span = (last - begin) / 1e3
    axis.set_yticks([0, 1], ["draft", "target"])
    axis.set(xlabel="milliseconds", xlim=(-0.02 * span, 1.02 * span), ylim=(-0.5, 1.7))
    key(figure, MEANING)
    return figure


DECODE = {"": decode, "_speed_up": speed_up, "_accepted": accepted, "_split": split}  # by what follows a file's name


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE.json")
    files = parser.parse_args(argv).files
    if importlib.util.find_spec("matplotlib") is None:
        parser.error("plots need matplotlib: pip install matplotlib")
    for file in files:
        content, name = read(file), Path(file).stem
        if "traceEvents" in content:
            beside(file, trace, content["traceEvents"])
            continue
        alone = next((n for n in ("linear", "kernels", "hit_rate") if n in name), None)
        for suffix, draw in ({"": globals()[alone]} if alone else DECODE).items():
            beside(file, draw, content["rows"], suffix)


def read(file: str) -> dict:
    """Results or a trace. Raises ValueError that names the file."""
    try:
        content = json.loads(Path(file).read_bytes().decode())
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict) or not {"rows", "traceEvents"} & content.keys():
        raise ValueError(f"{file}: holds no results of a benchmark, nor a trace of ssd.run")
    return content


if __name__ == "__main__":
    sys.exit(guarded(main, ValueError))
