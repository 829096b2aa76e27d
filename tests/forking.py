"""Running something in a forked process that must not hang."""

import os
import signal
import time
import traceback
from collections.abc import Callable
from typing import Any

import pytest

PATIENCE_S = 60


def in_a_forked_process(action: Callable[[], Any]) -> str:
    """What ``action`` returns in a forked process, or its traceback, as text.

    A process that hangs is killed, and the test fails.
    """
    return fork(action)()


def fork(action: Callable[[], Any]) -> Callable[[], str]:
    """The same for a process that runs meanwhile: call what this returns to wait for its answer."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, str(action()).encode())
        except BaseException:
            os.write(writing, traceback.format_exc().encode())
        finally:
            os._exit(0)
    os.close(writing)
    return lambda: _answer(child, reading)


def _answer(child: int, reading: int) -> str:
    deadline = time.monotonic() + PATIENCE_S
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            pytest.fail(f"a forked process did not end within {PATIENCE_S} s")
        time.sleep(0.002)
    with os.fdopen(reading) as answer:
        return answer.read()
