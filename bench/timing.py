"""Times of several candidates taken in turn, so that a disturbance of the machine meets all of them alike."""

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
    """Calls every candidate once a round, with the number of the round, until both limits are passed.

    candidates: name to a function of the round's number (to choose inputs that no cache holds).
    seconds: time to spend on all candidates together; least: rounds at the least; warm_up: rounds not counted.
    rest: seconds of sleep before each call, for thread pools that spin on after their work.
    prepare: what to call before each call of that name, not timed.
    sync: called before and after each call, for a device that works asynchronously.
    Returns for each name the seconds of each counted round.
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
    """Median, least and greatest of the values."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def ratio(times: dict[str, list[float]], name: str, base: str) -> float:
    """How many times as long `base` takes as `name`: the median over rounds of the quotient within a round."""
    return statistics.median(b / a for a, b in zip(times[name], times[base], strict=True))
