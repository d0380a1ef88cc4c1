"""The plot of a training run."""

from pathlib import Path


def plot(curve: list[dict], path: Path) -> None:
    """Draws loss and accepted length over tokens. Raises ValueError if matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError:
        raise ValueError("--plot needs matplotlib: pip install matplotlib") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    tokens = [point["tokens"] / 1e6 for point in curve]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    left.plot(tokens, [point["loss"] for point in curve])
    left.set_ylabel("loss")
    for name in ("greedy", "coupled"):
        right.plot(tokens, [point[name]["expected_length"] for point in curve], label=name)
    right.set_ylabel("accepted length, held out")
    right.legend(frameon=False)
    for axis in (left, right):
        axis.set_xlabel("million tokens")
        axis.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
