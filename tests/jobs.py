"""Jobs for executors, which other processes can import: plain ones, and ones that fail or kill their process."""

import os
import signal
import time
from concurrent.futures import Executor
from pathlib import Path


def square(number):
    return number * number


def square_and_process(number):
    return number * number, os.getpid()


def read_text(path):
    return path.read_text()


class UnpicklableError(Exception):
    """It can be pickled, but not be loaded again."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


class KillOnce:
    """Squares numbers. One of them kills its process, unless a marker says that it did so before."""

    def __init__(self, number, folder):
        self.number, self.marker = number, Path(folder) / f"killed-{number}"

    def __call__(self, number):
        if number == self.number and not self.marker.exists():
            self.marker.touch()
            kill()
        return number * number


def kill(number=None):
    os.kill(os.getpid(), signal.SIGKILL)


class SquareAndTrace:
    """Squares numbers, and leaves a file whenever it is loaded from a pickle."""

    def __init__(self, folder):
        self.folder = Path(folder)

    def __setstate__(self, state):
        self.__dict__ |= state
        (self.folder / os.urandom(8).hex()).touch()

    def __call__(self, number):
        return number * number


class RaiseAt:
    """Squares numbers, leaves a file for each, and raises an error with a note at one of them."""

    def __init__(self, number, folder, error=ValueError):
        self.number, self.folder, self.error = number, Path(folder), error

    def __call__(self, number):
        (self.folder / f"began-{number}").touch()
        if number == self.number:
            error = self.error(f"number {number}", "no good")
            error.add_note("a note")
            raise error
        return number * number


class WaitUnless:
    """Squares one number. With every other, it leaves a file named after its process, and never ends."""

    def __init__(self, number, folder):
        self.number, self.folder = number, Path(folder)

    def __call__(self, number):
        if number != self.number:
            (self.folder / f"process-{os.getpid()}").touch()
            while True:
                time.sleep(0.01)
        return number * number


def kill_first(marker, function, *arguments):
    """Kill this process, unless a marker says that it happened before; then call a function."""
    if not marker.exists():
        marker.touch()
        kill()
    return function(*arguments)


class KillsOne(Executor):
    """Another executor, of which a worker is killed in the middle: at the third call."""

    def __init__(self, executor, folder):
        self.executor, self.marker, self.calls = executor, Path(folder) / "killed", 0

    def submit(self, function, *arguments):
        self.calls += 1
        if self.calls == 3:
            return self.executor.submit(kill_first, self.marker, function, *arguments)
        return self.executor.submit(function, *arguments)

    @property
    def has_killed(self):
        return self.marker.exists()


def tokens_once_killed(row):
    """The tokens of a row. One with a marker kills the process that first maps it, if that is not the caller's."""
    if row["marker"] and row["caller"] != os.getpid() and not Path(row["marker"]).exists():
        Path(row["marker"]).touch()
        kill()
    return {"id": row["id"], "tokens": [row["id"]] * (row["id"] % 7)}


def has_tokens(row):
    return len(row["tokens"]) > 0
