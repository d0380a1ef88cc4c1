"""Pictures of the results, drawn beside their JSON files where matplotlib is installed.

`python -m bench.plots linear.json` draws a file again; its name says which picture. `python -m bench.plots trace.json`
draws what `python -m ssd.run --mode ssd --trace trace.json` wrote.
"""

import argparse
import importlib.util
import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path

from ssd.cli.command import guarded


def beside(path: str | None, draw: Callable, rows: list[dict], name: str = "") -> None:
    """Draws rows into the PNG beside the JSON file, `name` behind its own; without a file, rows, something to draw or
    matplotlib nothing is drawn."""
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
        path = Path(path)
        figure.savefig(path.with_name(f"{path.stem}{name}.png"), dpi=120, bbox_inches="tight")


def panels(count: int, title: str, height: float = 3.2):
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(count, 1, figsize=(8, height * count), squeeze=False)
    figure.suptitle(title)
    return figure, axes[:, 0]


def groups(rows: list[dict], *names: str) -> dict[tuple, list[dict]]:
    found: dict[tuple, list[dict]] = {}
    for row in rows:
        found.setdefault(tuple(row[n] for n in names), []).append(row)
    return found


def linear(rows: list[dict]):
    """Time of a pass by rows of the input, one panel for each shape and number of cores."""
    parts = groups(rows, "shape", "cores")
    figure, axes = panels(len(parts), "linear layers")
    for axis, ((shape, cores), part) in zip(axes, parts.items(), strict=True):
        for (format,), line in groups(part, "format").items():
            axis.plot([r["rows"] for r in line], [r["microseconds"] / 1e3 for r in line], marker="o", label=format)
        title = f"{shape}, {cores} core{'s' * (cores > 1)}"
        axis.set(xlabel="rows", ylabel="milliseconds", title=title, xscale="log", ylim=0)
        axis.legend()
    figure.tight_layout()
    return figure


def hit_rate(rows: list[dict]):
    """Hit rate against fan-out, one panel for each workload."""
    by_workload = groups(rows, "workload")
    figure, axes = panels(len(by_workload), "outcomes that were prepared for")
    for axis, ((workload,), part) in zip(axes, by_workload.items(), strict=True):
        for (verify, t), line in groups(part, "verify", "temperature").items():
            x = [r["fan_out"] for r in line]
            (drawn,) = axis.plot(x, [r["hit_rate"] for r in line], marker="o", label=f"{verify}, temperature {t:g}")
            live = [r["hit_rate_realtime"] for r in line]
            if None not in live:
                axis.plot(x, live, linestyle=":", color=drawn.get_color())
        axis.set(xlabel="fan-out", ylabel="hit rate", title=workload, xscale="log", ylim=(0, 1))
        axis.legend(fontsize="small")
    figure.tight_layout()
    return figure


def kernels(rows: list[dict]):
    """Fraction of the roofline of every shape, one panel for each operator."""
    rows = [{"cores": None} | r for r in rows if "error" not in r]
    by_op = groups(rows, "op")
    figure, axes = panels(len(by_op), "fraction of the measured roofline", height=3.8)
    for axis, ((op,), part) in zip(axes, by_op.items(), strict=True):
        shapes = list(dict.fromkeys(r["shape"] for r in part))
        for (backend, cores), line in groups(part, "backend", "cores").items():
            places = [shapes.index(r["shape"]) for r in line]
            label = backend + (f", {cores} cores" if cores else "")
            axis.plot(places, [r["roofline_fraction"] for r in line], "o-", ms=3, label=label)
        axis.set_xticks(range(len(shapes)), shapes, rotation=90, fontsize=6)
        axis.set(title=op, ylim=0)
        axis.legend()
    figure.tight_layout()
    return figure


def bars(rows: list[dict], title: str, label: str, value: Callable[[dict], dict]):
    """A bar for every system by workload, one panel for each number of cores; value: {median, min, max} of a row."""
    by_cores = groups(rows, "cores")
    figure, axes = panels(len(by_cores), title, height=4)
    for axis, ((cores,), part) in zip(axes, by_cores.items(), strict=True):
        workloads = list(dict.fromkeys(r["workload"] for r in part))
        systems = groups(part, "system", "mode", "precision")
        width = 0.85 / len(systems)
        for i, (name, those) in enumerate(systems.items()):
            heights = [value(r) for r in those]
            places = [workloads.index(r["workload"]) + i * width for r in those]
            error = [[h["median"] - h["min"] for h in heights], [h["max"] - h["median"] for h in heights]]
            axis.bar(
                places,
                [h["median"] for h in heights],
                width,
                yerr=error,
                label=" ".join(name),
                color=colour(i, systems),
            )
        axis.set_xticks([i + 0.42 - width / 2 for i in range(len(workloads))], workloads)
        axis.set(ylabel=label, title=f"{cores} core{'s' * (cores > 1)}")
        axis.legend(fontsize=6, loc="upper left", bbox_to_anchor=(1, 1))
    figure.tight_layout()
    return figure


def colour(i: int, of) -> tuple:
    import matplotlib

    return matplotlib.colormaps["turbo"]((i + 0.5) / len(of))


def decode(rows: list[dict]):
    """Tokens per second of every system by workload."""
    return bars(rows, "tokens per second, batch 1, greedy", "tokens per second", lambda r: r["tokens_per_second"])


def speed_up(rows: list[dict]):
    """How many times as fast as the same system's plain decoding, by workload."""
    rows = [r for r in rows if r.get("speed_up") and r["mode"] != "ar"]
    same = lambda r: dict.fromkeys(("median", "min", "max"), r["speed_up"])  # noqa: E731
    return bars(rows, "speed-up over plain decoding", "times as fast", same) if rows else None


def accepted(rows: list[dict]):
    """Tokens of a round by the most that a speculation may have, one panel for each workload."""
    rows = [r | dict(zip(("kind", "k"), r["mode"].split(":"), strict=True)) for r in rows if ":" in r["mode"]]
    if not rows:
        return None
    by_workload = groups(rows, "workload")
    figure, axes = panels(len(by_workload), "accepted length, bonus token included")
    for axis, ((workload,), part) in zip(axes, by_workload.items(), strict=True):
        for name, line in groups(part, "kind", "precision", "cores").items():
            points = sorted((int(r["k"]), r["counts"]["decode_tokens"] / r["counts"]["rounds"]) for r in line)
            axis.plot(*zip(*points, strict=True), marker="o", label="{} {}, {} cores".format(*name))
        axis.set(xlabel="K", ylabel="tokens a round", title=workload)
        axis.legend(fontsize="small")
    figure.tight_layout()
    return figure


def split(rows: list[dict]):
    """What a round is spent on, mean over workloads, one panel for each number of cores."""
    rows = [r for r in rows if r.get("counts")]
    if not rows:
        return None
    by_cores = groups(rows, "cores")
    figure, axes = panels(len(by_cores), "time of a round, mean over workloads")
    for axis, ((cores,), part) in zip(axes, by_cores.items(), strict=True):
        modes = groups(part, "mode", "precision")
        labels, below = [" ".join(m) for m in modes], [0.0] * len(modes)
        for what in spent_on(part[0]["counts"]):
            spent = [sum(spent_on(r["counts"])[what] for r in those) / len(those) for those in modes.values()]
            axis.barh(labels, spent, left=below, label=what)
            below = [a + b for a, b in zip(below, spent, strict=True)]
        axis.set(xlabel="milliseconds", title=f"{cores} core{'s' * (cores > 1)}")
        axis.legend(fontsize="small")
    figure.tight_layout()
    return figure


def spent_on(counts: dict) -> dict[str, float]:
    """Milliseconds of a decode pass; draft: or the wait for it, rest: the engine's own."""
    parts = {"draft": "draft", "target": "forward", "verify": "sample"}
    seconds = {name: counts[f"decode_{field}_seconds"] for name, field in parts.items()}
    seconds["rest"] = counts["decode_seconds"] - sum(seconds.values())
    return {name: 1e3 * s / max(counts["decode_passes"], 1) for name, s in seconds.items()}


STAGES = {
    "forward": "tab:blue",
    "verify": "tab:cyan",
    "update": "tab:cyan",
    "local retry": "tab:red",
    "pass": "tab:green",
}


def trace(events: list[dict], rounds: int = 8):
    """Both lanes of a run with --trace over some rounds in its middle: stages as bars, publications as ticks, how each
    verification turned out as a letter."""
    ends = sorted(e["ts"] for e in events if e["name"] in ("hit", "miss"))
    if len(ends) <= rounds:
        return None
    middle = (len(ends) - rounds) // 2
    begin, end = ends[middle] - 1e3, ends[middle + rounds] + 1e3
    figure, (axis,) = panels(1, "two lanes: while the target verifies, the draft prepares", 2.4)
    shown = set()
    for e in events:
        if e["ph"] == "M" or not begin <= e["ts"] <= end:
            continue
        place, at = 2 - e["tid"], (e["ts"] - begin) / 1e3
        if e["name"] in STAGES:
            label = {"pass": "draft's pass", "verify": "update"}.get(e["name"], e["name"])
            axis.barh(
                place, e["dur"] / 1e3, 0.55, left=at, color=STAGES[e["name"]], edgecolor="white", linewidth=0.4,
                label=None if label in shown else label,
            )  # fmt: skip
            shown.add(label)
        elif e["name"] == "publish":
            axis.plot([at, at], [place + 0.3, place + 0.4], color="black", linewidth=1)
        elif e["name"] in ("hit", "miss"):
            axis.text(at, 1.38, e["name"], ha="center", fontsize=7, color="tab:red" if e["name"] == "miss" else "black")
    axis.set_yticks([0, 1], ["draft", "target"])
    axis.set(xlabel="milliseconds", xlim=(0, (end - begin) / 1e3), ylim=(-0.5, 1.6))
    axis.legend(fontsize="x-small", ncol=4, loc="upper center", bbox_to_anchor=(0.5, -0.5))
    figure.tight_layout()
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
