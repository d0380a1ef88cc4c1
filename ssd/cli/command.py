"""Helpers of every command line: types of options, errors as one sentence, output files and Ctrl-C."""

import argparse
import math
import os
import signal
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

MOST_CORES = 4096  # of any machine; a longer list is never made


class BadInput(Exception):
    """An error of the caller's making; its text is one sentence."""


@contextmanager
def asked():
    """Turn errors about what the person asked for into BadInput; all others keep their traceback."""
    try:
        yield
    except (ValueError, TypeError, ImportError) as e:
        raise BadInput(str(e)) from e


class Parser(argparse.ArgumentParser):
    def parse_args(self, args=None, namespace=None):
        found = super().parse_args(args, namespace)
        for action in self._actions:
            if action.option_strings and getattr(found, action.dest, None) == "":  # a shell variable that is not set
                self.error(f"{action.option_strings[-1]}: got an empty text")
        return found

    def error(self, message):
        raise BadInput(message)


def whole(least: int, most: float = math.inf):
    """The type of an argument that is a whole number from least to most."""

    def read(text: str) -> int:
        value = int(text) if text.lstrip("-").isdecimal() else least - 1
        if not least <= value <= most:
            limits = f"at least {least}" if most == math.inf else f"{least} to {most}"
            raise argparse.ArgumentTypeError(f"got {text}, wanted a whole number, {limits}")
        return value

    return read


def listed(kind: type):
    """The type of an argument that lists values with commas between them."""

    def read(text: str) -> list:
        try:
            return [kind(part) for part in text.split(",")]
        except ValueError:
            example = {int: "1,2,4", float: "0,0.5"}[kind]
            raise argparse.ArgumentTypeError(f"got {text!r}, wanted numbers such as {example}") from None

    return read


def threads(text: str | None, name: str = "--threads") -> int | list[int] | None:
    """A number of threads ("3"), or a list of cores ("0,2", "4-7"; "3-3" is core 3 alone). Raises BadInput."""
    if text is None:
        return None
    try:
        if text.isdecimal() and int(text) > 0:
            return int(text)
        if text.isdecimal():
            raise BadInput(f"{name}: got {text}, wanted at least one thread; core 0 alone is written 0-0")
        spans = [[int(end) for end in part.split("-")] for part in text.split(",")]
        if any(len(span) > 2 or span[0] > span[-1] for span in spans):
            raise ValueError
        if (most := max(span[-1] for span in spans)) >= MOST_CORES:
            raise BadInput(f"{name}: got core {most}, wanted cores below {MOST_CORES}")
        return [core for span in spans for core in range(span[0], span[-1] + 1)]
    except ValueError:
        raise BadInput(
            f"{name}: got {text!r}, wanted a number of threads, or cores such as 0,2 or 4-7 or 3-3"
        ) from None


def check_writable(option: str, path: str) -> None:
    """Raise BadInput before the work where its result could not be written. No file is changed or left behind."""
    if Path(path).is_dir() or not Path(path).absolute().parent.is_dir():
        raise BadInput(f"{option}: cannot write {path}: wanted a file in a folder that exists")
    new = not os.path.lexists(path)
    if new or Path(path).is_file():
        written(option, path, lambda path: open(path, "ab").close())
    if new:
        os.unlink(path)


def written(option: str, path: str, write) -> None:
    try:
        write(path)
    except OSError as e:
        raise BadInput(f"{option}: cannot write {path}: {e.strerror}") from None


def printer(go_on: bool):
    """A function that prints at once. go_on: when nobody reads any more it prints into nothing and does not raise."""

    def say(text: str, end: str = "\n") -> None:
        try:
            print(text, end=end, flush=True)
        except BrokenPipeError:
            if not go_on:
                raise
            silence()

    return say


def silence() -> None:
    """Send everything that is printed from now on to nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def guarded(work, *bad: type[Exception]) -> int:
    """Run the work and return its exit code; 2 after bad input, 130 when interrupted.

    Bad input is told as one sentence on stderr. bad: more types of exceptions that count as bad input.
    """
    try:
        code = work()
        print(end="", flush=True)
        return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of the answer has seen enough
        silence()
        return 0
    except (BadInput, OSError, MemoryError, *bad) as e:
        named = isinstance(e, OSError) and e.strerror
        print(f"ssd: {f'{e.filename}: {e.strerror}' if named and e.filename else e}", file=sys.stderr)
        return 2


def stop_at_once() -> None:
    """Let Ctrl-C end the process even while an operator runs; Python alone would see it only when that returns."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write)

    def watch():
        while os.read(read, 1) != bytes([signal.SIGINT]):
            pass
        time.sleep(0.3)  # time to end in order
        os._exit(130)

    threading.Thread(target=watch, daemon=True).start()
