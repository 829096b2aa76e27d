"""Long work: jobs on an executor, run again if processes are killed; a progress bar; and the time that work takes."""

import logging
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import islice
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Self, TypeVar

from midepoch._common.checks import count
from midepoch._common.world import usable_cores

log = logging.getLogger("midepoch")

J = TypeVar("J")
R = TypeVar("R")

IN_FLIGHT = 1000
"""How many jobs an executor of the caller has at a time: enough for a cluster of as many cores."""
DEATHS_OF_A_RUN = 5
"""How often processes may be killed before that is an error."""
DEATHS = {
    ("distributed", "KilledWorker"),
    ("ray", "NodeDiedError"),
    ("ray", "OutOfMemoryError"),
    ("ray", "WorkerCrashedError"),
}
"""What cluster libraries raise if a worker died: the package and name of each error."""

TICK_SECONDS = 0.5


def run_all(
    function: Callable[[J], R],
    jobs: Sequence[J],
    executor: Executor | None = None,
    tick: Callable[[], None] = lambda: None,
) -> Iterator[tuple[J, R]]:
    """Call a function with each job, and yield each job with its result as soon as it is finished.

    Without an executor, as many processes as this process may use cores make the calls. They are made in this process
    if there is only one job or one core, or if the function cannot be sent to other processes.

    If one of these processes is killed, its jobs begin again in new processes, a few times. An executor
    of the caller is not replaced: Dask and Ray run lost jobs again themselves; elsewhere a lost job is an error. So a
    job may run more than once, and even twice at a time, with the same effect.

    If a call raises, no further job begins, and the error is raised unchanged. If the caller stops iterating or is
    interrupted, the processes that were started here are ended at once.

    ``tick`` is called about twice a second while no job finishes, unless this process makes the calls.
    """
    check_executor(executor)
    if executor is not None:
        return _run_on(executor, function, jobs, tick)
    processes = min(usable_cores(), len(jobs))
    if processes < 2 or multiprocessing.current_process().daemon:  # a daemon may not start processes
        return ((job, function(job)) for job in jobs)
    return _run_in_processes(function, jobs, processes, tick)


def check_executor(executor: Any) -> None:
    """Raise ``TypeError`` unless this is an executor or None."""
    if not isinstance(executor, Executor | None):
        raise TypeError(
            f"executor is a {type(executor).__name__}; it must be a concurrent.futures.Executor, or left out. "
            "For a Dask client, pass client.get_executor(); for Ray, midepoch.integrations.ray.RayExecutor()."
        )


def check_started(work: str) -> None:
    """Raise in a process that is still importing the main script, before it waits for a lock.

    The process that started it may hold that lock, and waits until it is started. ``work`` is for the message.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # as multiprocessing itself asks
        raise RuntimeError(
            f"{work} is called while this process is still being started. Each process that {work} starts first "
            "imports the main script, so a script must do its work below the line if __name__ == '__main__':."
        )


def _run_on(
    executor: Executor, function: Callable[[J], R], jobs: Sequence[J], tick: Callable[[], None]
) -> Iterator[tuple[J, R]]:
    """Run jobs on an executor of the caller."""
    if isinstance(executor, ProcessPoolExecutor):
        call = partial(_call_pickled, pickle.dumps(function))
    else:  # Dask would take equal calls of two runs for one call, and return the older result
        call = partial(_call, os.urandom(8), function)
    unfinished = len(jobs)
    try:
        for number, result in _results(executor, call, enumerate(jobs), IN_FLIGHT, tick):
            unfinished -= 1
            yield jobs[number], result
    except Exception as error:
        if not _is_death(error):
            raise
        raise RuntimeError(
            f"A worker of the executor died with {count('job', unfinished)} of {len(jobs):,} unfinished "
            f"({_words(error)}). Most often its memory ran out, or it cannot import what it was sent: a script "
            "must do its work below the line if __name__ == '__main__':. Start a new executor, with fewer workers or "
            "more memory for each, and call this again."
        ) from error


def _run_in_processes(
    function: Callable[[J], R], jobs: Sequence[J], processes: int, tick: Callable[[], None]
) -> Iterator[tuple[J, R]]:
    """Run jobs in processes that are started here, and started again if they are killed."""
    unfinished, deaths = dict(enumerate(jobs)), 0
    while True:
        try:
            with _Processes(processes, _pickled(function)) as pool:
                _try_loading(pool, processes)
                for number, result in _results(pool, _call_sent, unfinished.copy().items(), 2 * processes, tick):
                    yield unfinished.pop(number), result
            return
        except _UnsendableError as error:
            log.warning(
                "The work is done in one process only, because its function cannot be sent to others (%s). Define all "
                "functions at the top level of a module that other processes can import, or pass an executor.",
                error,
            )
            yield from ((job, function(job)) for job in unfinished.values())
            return
        except BrokenExecutor as death:
            deaths += 1
            if deaths == DEATHS_OF_A_RUN:
                raise RuntimeError(
                    f"Processes were killed {count('time', deaths)}, and {count('job', len(unfinished))} of "
                    f"{len(jobs):,} are unfinished ({_words(death)}). Most often memory ran out. Use fewer processes "
                    "at a time, such as executor=concurrent.futures.ProcessPoolExecutor(2), and call this again."
                ) from death
            log.warning("A process was killed (%s). New processes do its jobs, and those of the others.", _words(death))


def _results(
    executor: Executor, call: Callable[[J], R], jobs: Iterable[tuple[int, J]], in_flight: int, tick: Callable[[], None]
) -> Iterator[tuple[int, R]]:
    """The number of each job with its result, as soon as it is finished. ``in_flight`` are submitted at a time."""
    waiting, running, finished = iter(jobs), dict[Future[R], int](), SimpleQueue[Future[R]]()
    try:
        while True:
            for number, job in islice(waiting, in_flight - len(running)):
                future = executor.submit(call, job)
                running[future] = number
                future.add_done_callback(finished.put)
            if not running:
                return
            try:
                future = finished.get(timeout=TICK_SECONDS)
            except Empty:
                tick()
            else:
                yield running.pop(future), future.result()
    finally:
        for future in running:
            future.cancel()


class _UnsendableError(Exception):
    """A function cannot be pickled here, or not be loaded in another process."""


class _Processes(ProcessPoolExecutor):
    """Processes that call one function. On an interrupt they end at once, on an error when their jobs are finished."""

    def __init__(self, processes: int, payload: bytes) -> None:
        # A forked process could inherit locks that other threads hold. A fork server would keep the environment that
        # it was started with.
        super().__init__(processes, multiprocessing.get_context("spawn"), _prepare_process, (payload,))

    def submit(self, *arguments: Any, **named: Any) -> Future[Any]:
        try:
            return super().submit(*arguments, **named)
        except (ValueError, OSError) as error:  # a process died while another was started: its pipes are closed
            raise BrokenExecutor(str(error)) from error

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        if kind is not None and not issubclass(kind, Exception):
            for process in list((self._processes or {}).values()):
                process.terminate()
        self.shutdown(cancel_futures=True)


_sent = b""
"""The pickled function of a process that was started here. It is not in each job, because it may hold much data."""


def _prepare_process(payload: bytes) -> None:
    """Receive the function. Let the process that started this one decide when it ends, and end with it."""
    global _sent
    _sent = payload
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)  # it was killed: this process would wait for its next job forever


def _pickled(function: Callable[[Any], Any]) -> bytes:
    try:
        return pickle.dumps(function)
    except Exception as error:
        raise _UnsendableError(_words(error)) from error


def _try_loading(pool: Executor, processes: int) -> None:
    """Start all processes, and load the function in them.

    A pool starts a process for a job that finds no idle one. If another process dies at that moment, the thread of the
    pool fails. So all are started before the first job that may kill one.
    """
    try:
        failures = [loading.result() for loading in [pool.submit(_loading_error) for _ in range(processes)]]
    except BrokenExecutor as error:
        raise RuntimeError(
            "The processes for this work ended while they started. Each of them first imports the main script, so a "
            "script must do its work below the line if __name__ == '__main__':. Without processes it works with "
            "executor=concurrent.futures.ThreadPoolExecutor()."
        ) from error
    for failure in filter(None, failures):
        raise _UnsendableError(failure)


def _loading_error() -> str | None:
    try:
        _loaded(_sent)
    except Exception as error:
        return _words(error)
    return None


@lru_cache(maxsize=1)
def _loaded(payload: bytes) -> Callable[[Any], Any]:
    function: Callable[[Any], Any] = pickle.loads(payload)
    return function


def _call(run: bytes, function: Callable[[Any], Any], job: Any) -> Any:
    return function(job)


def _call_sent(job: Any) -> Any:
    return _call_pickled(_sent, job)


def _call_pickled(payload: bytes, job: Any) -> Any:
    """Call a pickled function. An error that cannot be pickled, and so would break the pool, is replaced."""
    try:
        return _loaded(payload)(job)
    except Exception as error:
        if _can_be_pickled(error):
            raise
        replacement = RuntimeError(_words(error))
        for note in getattr(error, "__notes__", ()):
            replacement.add_note(note)
        raise replacement from error


def _can_be_pickled(error: Exception) -> bool:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return False
    return True


def _is_death(error: Exception) -> bool:
    """True if an error says that a worker died, not that a job failed."""
    if isinstance(error, BrokenExecutor | CancelledError):
        return True
    return any((kind.__module__.partition(".")[0], kind.__name__) in DEATHS for kind in type(error).__mro__)


def _words(error: Exception | None) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


QUIET_SECONDS = 2.0
"""Shorter work shows nothing."""
EVERY_SECONDS = 0.2
WIDTH = 30


class ProgressBar:
    """A context manager that shows on a terminal how much of some work is done.

    Nothing appears in the first two seconds. Work that takes longer is also logged: once while it goes on, and when it
    is finished.
    """

    def __init__(self, title: str, *, unit: str, total: int | None = None) -> None:
        self._title, self._unit, self._total = title, unit, total
        self._start, self._drawn_at = time.monotonic(), float("-inf")
        self._done, self._note, self._is_logged = 0, "", False

    @property
    def is_due(self) -> bool:
        """True if an update would be drawn now, so that callers compute what they pass only then."""
        now = time.monotonic()
        return now - self._start >= QUIET_SECONDS and now - self._drawn_at >= EVERY_SECONDS and sys.stderr.isatty()

    def update(self, done: int, *, total: int | None = None, note: str = "") -> None:
        """Set how many units are done. ``total``, and the ``note`` after the numbers, stay until they are replaced."""
        self._done, self._note = done, note or self._note
        self._total = self._total if total is None else total
        if self.is_due:
            self._draw()
        is_done = self._total is not None and done >= self._total
        if not self._is_logged and time.monotonic() - self._start >= QUIET_SECONDS and not is_done:
            self._is_logged = True
            of = "" if self._total is None else f" of {self._total:,}"
            log.info("%s: %s%s %s so far; it goes on.", self._title, f"{done:,}", of, self._unit)

    def tick(self) -> None:
        """Show that the work goes on, if nothing new is done."""
        self.update(self._done)

    def _draw(self) -> None:
        self._drawn_at = time.monotonic()
        line = f"{self._done:,} {self._unit}"
        if self._total is not None:
            filled = min(WIDTH, WIDTH * self._done // max(1, self._total))
            line = f"[{'#' * filled}{'-' * (WIDTH - filled)}] {self._done:,}/{self._total:,} {self._unit}"
        line += f", {self._note}" if self._note else ""
        print(f"\r\033[Kmidepoch: {self._title} {line}", end="", file=sys.stderr, flush=True)  # noqa: T201

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._drawn_at > self._start:
            self._draw()
            print(file=sys.stderr, flush=True)  # noqa: T201
        seconds = time.monotonic() - self._start
        if kind is None and seconds >= QUIET_SECONDS:
            log.info("%s: %s %s in %.1f s.", self._title, f"{self._done:,}", self._unit, seconds)


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
            with self.running():
                return function(*arguments)

        return call


FUNCTIONS = ThreadClock()
"""In functions of the user."""
REQUESTS = ThreadClock()
"""In which a thread waited for requests to a store, also those that other threads sent for it."""
