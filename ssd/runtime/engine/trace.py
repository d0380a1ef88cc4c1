"""What the lanes did when, in the format of chrome://tracing and ui.perfetto.dev."""

import json
from pathlib import Path
from time import perf_counter

LANES = {"verify": 1, "draft": 2}


class Trace:
    """Spans and instants of both lanes, in microseconds from the start. Each lane writes from its own thread."""

    def __init__(self):
        self.start = perf_counter()
        self.events: list[dict] = []

    def span(self, lane: str, name: str, begin: float, end: float, **args) -> None:
        """Add a span; begin and end are seconds of perf_counter."""
        self.events.append(
            {"ph": "X", "pid": 1, "tid": LANES[lane], "name": name, "ts": 1e6 * (begin - self.start)}
            | {"dur": 1e6 * (end - begin), "args": args}
        )

    def instant(self, lane: str, name: str, **args) -> None:
        now = 1e6 * (perf_counter() - self.start)
        self.events.append({"ph": "i", "pid": 1, "tid": LANES[lane], "name": name, "ts": now, "s": "t", "args": args})

    def write(self, path: str | Path) -> None:
        names = [
            {"ph": "M", "pid": 1, "tid": tid, "name": "thread_name", "args": {"name": f"{lane} lane"}}
            for lane, tid in LANES.items()
        ]
        Path(path).write_text(json.dumps({"traceEvents": names + self.events, "displayTimeUnit": "ms"}))
