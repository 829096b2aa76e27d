"""Seconds that one kind of work takes, for each thread: whoever asks for the work reads them before and after."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class ThreadClock(threading.local):
    """The seconds of the present thread."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the time of a block."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - begun

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, timed."""

        def call(*arguments: Any) -> Any:
            begun = time.perf_counter()
            try:
                return function(*arguments)
            finally:
                self.seconds += time.perf_counter() - begun

        return call


FUNCTIONS = ThreadClock()
"""In functions of the user."""
REQUESTS = ThreadClock()
"""In which a thread waited for requests to a store, also those that other threads sent for it."""
