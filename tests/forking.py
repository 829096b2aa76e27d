"""Running something in a forked process that must not hang, and which processes a test has started."""

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable
from typing import Any


def children() -> set[int]:
    """The processes that this one has started, such as workers."""
    return {process.pid for process in multiprocessing.active_children()}


def in_a_forked_process(action: Callable[[], Any]) -> str:
    """What ``action`` returns in a forked process, or its traceback, as text.

    A process that hangs is killed when the test reaches its time limit.
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
    try:
        with os.fdopen(reading) as answer:
            return answer.read()
    finally:  # a test that reaches its time limit comes here too
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
