"""What the command lines of the package share: options, errors as one sentence, files that results go to, Ctrl-C."""

import argparse
import math
import os
import signal
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path


class BadInput(Exception):
    """One sentence for the person who called."""


@contextmanager
def asked():
    """Errors of what the person asked for, so that those of the program itself keep their traceback."""
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
    """An argument's type: whole numbers from least to most."""

    def read(text: str) -> int:
        value = int(text) if text.lstrip("-").isdecimal() else least - 1
        if not least <= value <= most:
            limits = f"at least {least}" if most == math.inf else f"{least} to {most}"
            raise argparse.ArgumentTypeError(f"got {text}, wanted a whole number, {limits}")
        return value

    return read


def listed(kind: type):
    """An argument's type: values with commas between them."""

    def read(text: str) -> list:
        try:
            return [kind(part) for part in text.split(",")]
        except ValueError:
            example = {int: "1,2,4", float: "0,0.5"}[kind]
            raise argparse.ArgumentTypeError(f"got {text!r}, wanted numbers such as {example}") from None

    return read


def threads(text: str | None, name: str = "--threads") -> int | list[int] | None:
    """ "3" is three threads; "0,2" and "4-7" are lists of cores."""
    if text is None:
        return None
    try:
        if text.isdecimal():
            return int(text)
        spans = [[int(end) for end in part.split("-")] for part in text.split(",")]
        if any(len(span) > 2 or span[0] > span[-1] for span in spans):
            raise ValueError
        return [core for span in spans for core in range(span[0], span[-1] + 1)]
    except ValueError:
        raise BadInput(f"{name}: got {text!r}, wanted a number of threads, or cores such as 0,2 or 4-7") from None


def check_writable(option: str, path: str) -> None:
    """Before the work, so that nothing is lost after it. A file that was not there is not there afterwards."""
    if Path(path).is_dir() or not Path(path).absolute().parent.is_dir():
        raise BadInput(f"{option}: cannot write {path}: wanted a file in a folder that is there")
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
    """print, at once. go_on: also when whoever read has seen enough, and then into nothing."""

    def say(text: str, end: str = "\n") -> None:
        try:
            print(text, end=end, flush=True)
        except BrokenPipeError:
            if not go_on:
                raise
            silence()

    return say


def silence() -> None:
    """What is still printed goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def guarded(work, *bad: type[Exception]) -> int:
    """Exit code: 0 done, 2 bad input (one sentence on stderr; errors of the types bad are too), 130 interrupted."""
    try:
        code = work()
        print(end="", flush=True)
        return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever read the answer has seen enough
        silence()
        return 0
    except (BadInput, OSError, MemoryError, *bad) as e:
        named = isinstance(e, OSError) and e.strerror
        print(f"ssd: {f'{e.filename}: {e.strerror}' if named and e.filename else e}", file=sys.stderr)
        return 2


def stop_at_once() -> None:
    """Ctrl-C ends the process even while an operator runs: Python itself would only see it when that returns."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write)

    def watch():
        while os.read(read, 1) != bytes([signal.SIGINT]):
            pass
        time.sleep(0.3)  # for an end in order
        os._exit(130)

    threading.Thread(target=watch, daemon=True).start()
