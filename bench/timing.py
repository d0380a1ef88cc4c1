"""Times of several candidates that run in turn, so that a disturbance of the machine affects all of them alike."""

import statistics
import time
from collections.abc import Callable
from itertools import count

REST = 0.02  # seconds of sleep between turns, in which the thread pools of all candidates stop spinning


def interleave(
    candidates: dict[str, Callable[[int], object]],
    seconds: float = 1.0,
    least: int = 5,
    warm_up: int = 1,
    rest: float = 0.0,
    sync: Callable[[], object] | None = None,
    prepare: dict[str, Callable[[int], object]] | None = None,
) -> dict[str, list[float]]:
    """The seconds of each counted round, by name. Every candidate runs once a round, until both limits are passed.

    candidates: by name, functions of the number of the round, by which they choose inputs that no cache holds.
    seconds: time for all candidates together; least: fewest rounds; warm_up: rounds that are not counted.
    rest: seconds of sleep before each call, for thread pools that keep spinning after their work.
    sync: function that is called before and after each call, for a device that works asynchronously.
    prepare: by name, functions that are called before each call of a candidate and not timed.
    """
    times: dict[str, list[float]] = {name: [] for name in candidates}
    begin = time.perf_counter()
    for turn in count():
        if turn >= warm_up + least and time.perf_counter() - begin >= seconds:
            return times
        for name, call in candidates.items():
            if rest:
                time.sleep(rest)
            if prepare and name in prepare:
                prepare[name](turn)
            if sync:
                sync()
            start = time.perf_counter()
            call(turn)
            if sync:
                sync()
            if turn >= warm_up:
                times[name].append(time.perf_counter() - start)


def spread(values: list[float]) -> dict[str, float]:
    """The median, the least and the greatest of the values."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def ratio(times: dict[str, list[float]], name: str, base: str) -> float:
    """How many times as long `base` takes as `name`: the median of the ratios within each round."""
    return statistics.median(b / a for a, b in zip(times[name], times[base], strict=True))
