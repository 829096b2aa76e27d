"""Long work: jobs on an executor, run again if processes are killed; a progress bar; and the time that work takes."""

import logging
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import chain
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Generic, Self, TypeVar

from midepoch._common.checks import count
from midepoch._common.world import usable_cores

log = logging.getLogger("midepoch")

J = TypeVar("J")
R = TypeVar("R")

IN_FLIGHT = 1000
"""How many jobs an executor of the caller has at a time: enough for a cluster of as many cores."""
ATTEMPTS = 4
"""How often a job is begun, if processes are killed meanwhile, before that is an error."""
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

    If one of these processes is killed, its jobs begin again in new processes, up to ``ATTEMPTS`` times. An executor
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
    run = _Run(executor, call, enumerate(jobs), IN_FLIGHT)
    yield from run.results(tick)
    if run.lost:
        unfinished = len(run.lost) + sum(1 for _ in run.tasks)
        raise RuntimeError(
            f"A worker of the executor died with {count('job', unfinished)} of {len(jobs):,} unfinished "
            f"({_words(run.death)}). Most often its memory ran out, or it cannot import what it was sent: a script "
            "must do its work below the line if __name__ == '__main__':. Start a new executor, with fewer workers or "
            "more memory for each, and call this again."
        ) from run.death


def _run_in_processes(
    function: Callable[[J], R], jobs: Sequence[J], processes: int, tick: Callable[[], None]
) -> Iterator[tuple[J, R]]:
    """Run jobs in processes that are started here, and started again if they are killed."""
    tasks: Iterator[tuple[int, J]] = enumerate(jobs)
    attempts: Counter[int] = Counter()
    while True:
        try:
            with _Processes(processes, _pickled(function)) as pool:
                _try_loading(pool, processes)
                run = _Run(pool, _call_sent, tasks, 2 * processes)
                yield from run.results(tick)
        except _UnsendableError as error:
            log.warning(
                "The work is done in one process only, because its function cannot be sent to others (%s). Define all "
                "functions at the top level of a module that other processes can import, or pass an executor.",
                error,
            )
            yield from ((job, function(job)) for _, job in tasks)
            return
        if not run.lost:
            return
        attempts.update(number for number, _ in run.lost)
        _report_deaths(run, max(attempts.values()), len(jobs))
        tasks = chain(run.lost, tasks)


def _report_deaths(run: "_Run[Any, Any]", attempts: int, jobs: int) -> None:
    if attempts == ATTEMPTS:
        raise RuntimeError(
            f"Processes were killed {count('time', attempts)} during the same {count('job', len(run.lost))} of "
            f"{jobs:,} ({_words(run.death)}). Most often memory ran out. Use fewer processes at a time, such as "
            "executor=concurrent.futures.ProcessPoolExecutor(2), and call this again."
        ) from run.death
    log.warning(
        "A process was killed (%s). New processes begin its jobs, and those of the others, again: %s.",
        _words(run.death),
        count("job", len(run.lost)),
    )


class _Run(Generic[J, R]):
    """Numbered jobs on one executor, ``in_flight`` at a time.

    If a worker dies, no further job begins. Those that were submitted and have no result are ``lost``.
    """

    def __init__(
        self, executor: Executor, call: Callable[[J], R], tasks: Iterator[tuple[int, J]], in_flight: int
    ) -> None:
        self._executor, self._call, self._in_flight = executor, call, in_flight
        self._submitted: dict[Future[R], tuple[int, J]] = {}
        self._finished: SimpleQueue[Future[R]] = SimpleQueue()
        self.tasks = tasks
        self.lost: list[tuple[int, J]] = []
        self.death: Exception | None = None

    def results(self, tick: Callable[[], None]) -> Iterator[tuple[J, R]]:
        """Each job with its result, as soon as it is finished."""
        try:
            while self._submit():
                future = self._next_finished(tick)
                task = self._submitted.pop(future)
                try:
                    result = future.result()
                except Exception as error:
                    if not _is_death(error):
                        raise
                    self._lose(task, error)
                else:
                    yield task[1], result
        finally:
            self._cancel()

    def _next_finished(self, tick: Callable[[], None]) -> Future[R]:
        while True:
            try:
                return self._finished.get(timeout=TICK_SECONDS)
            except Empty:
                tick()

    def _submit(self) -> bool:
        """Submit as many jobs as may be in flight; returns false if there is none to wait for."""
        while self.death is None and len(self._submitted) < self._in_flight:
            task = next(self.tasks, None)
            if task is None:
                break
            try:
                future = self._executor.submit(self._call, task[1])
            except BrokenExecutor as error:
                self._lose(task, error)
                break
            except (ValueError, OSError) as error:
                if not isinstance(self._executor, _Processes):
                    raise
                # A process died while another was started, and the pipes that this one should get are closed already.
                self._lose(task, error)
                break
            self._submitted[future] = task
            future.add_done_callback(self._finished.put)
        return bool(self._submitted)

    def _lose(self, task: tuple[int, J], error: Exception) -> None:
        self.lost.append(task)
        if self.death is None:
            self.death = error
            if not isinstance(error, BrokenExecutor):  # a broken executor has ended all its futures
                self._cancel()

    def _cancel(self) -> None:
        for future in list(self._submitted):
            future.cancel()


class _UnsendableError(Exception):
    """A function cannot be pickled here, or not be loaded in another process."""


class _Processes(ProcessPoolExecutor):
    """Processes that call one function. On an interrupt they end at once, on an error when their jobs are finished."""

    def __init__(self, processes: int, payload: bytes) -> None:
        # A forked process could inherit locks that other threads hold. A fork server would keep the environment that
        # it was started with.
        super().__init__(processes, multiprocessing.get_context("spawn"), _prepare_process, (payload,))

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
    except (BrokenExecutor, ValueError, OSError) as error:  # the last two if one ends while another is started
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

    def __init__(self, title: str, *, unit: str, total: int | None = None, every: float = EVERY_SECONDS) -> None:
        self._title, self._unit, self._total, self._every = title, unit, total, every
        self._start, self._drawn_at = time.monotonic(), float("-inf")
        self._done, self._note, self._is_logged = 0, "", False

    @property
    def is_due(self) -> bool:
        """True if an update would be drawn now, so that callers compute what they pass only then."""
        now = time.monotonic()
        return now - self._start >= QUIET_SECONDS and now - self._drawn_at >= self._every and sys.stderr.isatty()

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
