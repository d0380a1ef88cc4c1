"""Keeps a draft lane: starts it, lets it sleep, sees that it fails or hangs, replaces it, and in the end gives up."""

import logging
import weakref
from collections.abc import Callable
from time import monotonic

from .draft_lane import DraftLane
from .speculation_cache import SpeculationCache

log = logging.getLogger(__name__)
STALLED = 0.8  # seconds without a sign of life
FAILURES = 3  # then decoding goes on without a draft lane


def end(lane: DraftLane) -> None:
    """Stop a draft lane and wait for it; a thread that still runs when the interpreter ends would end it badly."""
    lane.stop()
    if lane.is_alive():
        lane.join(1.0)


class LaneSupervisor:
    """start: makes a cache and a draft lane for it, not started yet. lockstep: the lane gets no thread, but turns.

    A lane that hangs keeps its cache, since it may wake: its successor gets another. lane and cache are None once all
    is given up.
    """

    def __init__(self, start: Callable[[], tuple[SpeculationCache, DraftLane]], lockstep: bool):
        self.start, self.lockstep = start, lockstep
        self.failures, self.trace = 0, None
        self.lane: DraftLane | None = None
        self.cache: SpeculationCache | None = None
        self._launch()

    def _launch(self) -> None:
        self.cache, self.lane = self.start()
        self.lane.trace = self.trace
        if not self.lockstep:
            self._at_end = weakref.finalize(self, end, self.lane)
            self.lane.start()

    def record(self, trace) -> None:
        """Let this lane and its successors write into a trace."""
        self.trace = trace
        if self.lane:
            self.lane.trace = trace

    def fault(self, busy: bool) -> str | None:
        """What is wrong with the lane, None where nothing is. busy: it has something to do."""
        if self.lane is None:
            return None
        if self.lane.error:
            return repr(self.lane.error)
        if busy and not self.lockstep and monotonic() - self.lane.beat > STALLED:
            return f"no sign of life for {STALLED} s"
        return None

    def give_up(self, reason: str) -> None:
        """Leave the lane and its cache to themselves."""
        self.lane.stop()
        if not self.lockstep:
            self._at_end.detach()  # what is given up is kept by nobody
        self.failures += 1
        self.lane = self.cache = None
        if self.failures < FAILURES:
            log.info("draft lane given up (%s): another one starts", reason)
        else:
            log.warning("draft lane failed %d times (%s): decoding goes on without it", self.failures, reason)

    def replace(self) -> None:
        """Another lane, unless too many failed."""
        if self.failures < FAILURES:
            self._launch()

    def turn(self) -> str | None:
        """Let a lane in lockstep prepare what it can. Returns what went wrong."""
        try:
            self.lane.step(0)
        except Exception as e:  # as in a thread of its own
            self.lane.error = e
        return self.fault(True)

    def sleep(self) -> None:
        if self.lane:
            self.lane.awake.clear()

    def wake(self) -> None:
        if self.lane and not self.lane.awake.is_set():
            if self.lane.asleep:  # one that hangs is not
                self.lane.beat = monotonic()
            self.lane.awake.set()

    def close(self) -> None:
        """Stop the lane."""
        if self.lane:
            end(self.lane)
            self.lane = None
