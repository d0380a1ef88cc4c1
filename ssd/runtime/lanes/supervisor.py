"""Supervision of a draft lane, which is started, sleeps, and is replaced when it fails or hangs."""

import atexit
import logging
import os
import threading
import weakref
from collections.abc import Callable
from time import monotonic

from ssd.kernels import compiling

from .draft_lane import DraftLane
from .speculation_cache import SpeculationCache

log = logging.getLogger(__name__)
STALLED = 0.8  # seconds without a sign of life
FAILURES = 3  # then decoding goes on without a draft lane
FAREWELL = 30.0  # seconds for lanes to end in when the interpreter does

running: weakref.WeakSet[DraftLane] = weakref.WeakSet()  # lanes with a thread
threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()  # of lanes, which may be gone before them


@atexit.register
def end_all() -> None:
    """End every lane. A thread that comes back from an operator when the interpreter has ended aborts the process, so
    this waits much longer than any pass takes on a busy machine."""
    for lane in list(running):
        lane.stop()
    until = monotonic() + FAREWELL
    for thread in list(threads):
        thread.join(max(0.0, until - monotonic()))


def forget_all() -> None:
    """In a forked process: the threads are the parent's, and what they locked stays locked."""
    for lane in list(running):
        lane.awake = threading.Event()
        lane.runner.pages.forget_thread()
    running.clear()
    threads.clear()


os.register_at_fork(after_in_child=forget_all)


def let_go(lane: DraftLane) -> None:
    """Tell a lane that nobody holds any more to end at its next look. A finaliser takes no lock and waits for nobody:
    the collector may run it in any thread, the lane's own included."""
    lane.stopping = True


class LaneSupervisor:
    """Starts a draft lane, watches it and replaces it.

    start: makes a cache and a draft lane for it, which is not started yet. lockstep: the lane has no thread but takes
    turns. A lane that hangs keeps its cache, since it may wake; its successor gets another. lane and cache are None
    once too many lanes failed.
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
            self._let_go = weakref.finalize(self, let_go, self.lane)
            self._let_go.atexit = False
            running.add(self.lane)
            self.lane.start()
            threads.add(self.lane.thread)

    def record(self, trace) -> None:
        """Let this lane and its successors write into a trace."""
        self.trace = trace
        if self.lane:
            self.lane.trace = trace

    def fault(self, busy: bool) -> str | None:
        """What is wrong with the lane, None where nothing is. busy: whether it has something to do.

        A lane that compiles a kernel is alive, and so is one that another thread's compilation held up."""
        if self.lane is None:
            return None
        if self.lane.error:
            return repr(self.lane.error)
        if not self.lockstep and not self.lane.thread.is_alive():
            return "its thread has ended"
        if busy and not self.lockstep and monotonic() - max(self.lane.beat, compiling.newest()) > STALLED:
            return f"no sign of life for {STALLED} s"
        return None

    def give_up(self, reason: str) -> None:
        """Leave the lane and its cache to themselves."""
        self.lane.stop()
        self.lane.runner.pages.retire()
        if not self.lockstep:
            self._let_go.detach()  # else the finaliser would keep the lane alive
        self.failures += 1
        self.lane = self.cache = None
        if self.failures < FAILURES:
            log.info("draft lane given up (%s): another one starts", reason)
        else:
            log.warning("draft lane failed %d times (%s): decoding goes on without it", self.failures, reason)

    def replace(self) -> None:
        """Start another lane, unless too many failed, or there is no memory for one."""
        if self.failures == FAILURES:
            return
        try:
            self._launch()
        except (MemoryError, RuntimeError) as e:  # torch has no MemoryError of its own, nor has a thread that cannot be
            self.failures, self.lane, self.cache = FAILURES, None, None
            log.warning("no other draft lane can start (%s): decoding goes on without it", e)

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
            if self.lockstep:
                self.lane.runner.pages.drop_all()

    def wake(self) -> None:
        if self.lane and not self.lane.awake.is_set():
            if self.lane.asleep:  # a lane that hangs is not asleep
                self.lane.beat = monotonic()
            self.lane.awake.set()

    def close(self) -> None:
        """Stop the lane."""
        if self.lane:
            self.lane.stop()
            if self.lane.thread:
                self.lane.thread.join(1.0)
            self.lane = None
