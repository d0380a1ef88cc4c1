"""Who may work on an engine: one thread at a time, pass by pass."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import Lock, get_ident

from .engine.sequence import Sequence


class Turns:
    """Turns of threads on one engine. Requests that are given up are cancelled at the borders of a turn.

    cancel: takes one request out of the engine.
    """

    def __init__(self, cancel: Callable[[Sequence], None]):
        self._cancel = cancel
        self._lock, self._holder = Lock(), None
        self._process = os.getpid()
        self._given_up: deque[Sequence] = deque()

    def give_up(self, sequences: Iterable[Sequence]) -> None:
        """Mark requests. No lock is taken: finalisers and signal handlers run inside a turn of their own thread too."""
        self._given_up.extend(sequences)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Have the engine alone. Raises RuntimeError where the calling thread has it already, and in a process that was
        forked while another thread had it."""
        if self._holder == get_ident():
            raise RuntimeError("LLM: called from inside one of its own passes, by a signal handler, say; call it later")
        if self._process != os.getpid():
            if self._lock.locked():
                raise RuntimeError(
                    "LLM: belongs to the parent process, which forked while it was at work; make one here"
                )
            self._process = os.getpid()
        with self._lock:
            self._holder = get_ident()
            try:
                self._drop()
                yield
            finally:
                self._drop()
                self._holder = None

    def cancel(self, sequences: Iterable[Sequence]) -> None:
        """Cancel requests now, or at the end of the turn that the calling thread has."""
        self.give_up(sequences)
        if self._holder != get_ident():
            with self.turn():
                pass

    def _drop(self) -> None:
        while self._given_up:
            self._cancel(self._given_up.popleft())
