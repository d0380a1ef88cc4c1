"""Pictures of the results, drawn beside their JSON files where matplotlib is installed.

`python -m bench.plots linear.json` draws a file again; its name says which picture.
"""

import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path


def beside(path: str | None, draw: Callable, rows: list[dict]) -> None:
    """Draws rows into the PNG beside the JSON file; without a file, rows or matplotlib nothing is drawn."""
    if not path or not rows:
        return
    try:
        import matplotlib
    except ImportError:
        logging.getLogger(__name__).warning("no plot: matplotlib is not installed")
        return
    matplotlib.use("Agg")
    figure = draw(rows)
    figure.savefig(Path(path).with_suffix(".png"), dpi=120, bbox_inches="tight")


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


def decode(rows: list[dict]):
    """Tokens per second of every system by workload, one panel for each number of cores."""
    by_cores = groups(rows, "cores")
    figure, axes = panels(len(by_cores), "tokens per second, batch 1, greedy", height=4)
    for axis, ((cores,), part) in zip(axes, by_cores.items(), strict=True):
        workloads = list(dict.fromkeys(r["workload"] for r in part))
        systems = groups(part, "system", "mode", "precision")
        width = 0.85 / len(systems)
        for i, (name, bars) in enumerate(systems.items()):
            speeds = [r["tokens_per_second"] for r in bars]
            places = [workloads.index(r["workload"]) + i * width for r in bars]
            error = [[s["median"] - s["min"] for s in speeds], [s["max"] - s["median"] for s in speeds]]
            axis.bar(places, [s["median"] for s in speeds], width, yerr=error, label=" ".join(name))
        axis.set_xticks([i + 0.42 - width / 2 for i in range(len(workloads))], workloads)
        axis.set(ylabel="tokens per second", title=f"{cores} core{'s' * (cores > 1)}")
        axis.legend(fontsize=7)
    figure.tight_layout()
    return figure


if __name__ == "__main__":
    for file in sys.argv[1:]:
        name = next(n for n in ("linear", "kernels", "decode", "hit_rate") if n in Path(file).stem)
        beside(file, globals()[name], json.loads(Path(file).read_text())["rows"])
