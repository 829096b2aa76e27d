"""One progress bar for long work: drawn by tqdm if it is installed, otherwise a plain line, and only on a terminal."""

import logging
import sys
import time
from types import TracebackType
from typing import Protocol, Self

log = logging.getLogger("midepoch")

QUIET_SECONDS = 2.0
"""Shorter work shows nothing."""
EVERY_SECONDS = 0.2
WIDTH = 30


class ProgressBar:
    """A context manager that shows how much of some work is done.

    Nothing appears in the first two seconds. ``show=None`` draws on a terminal only, ``True`` anywhere, ``False``
    nowhere. Work that takes longer than two seconds is also logged: once while it goes on, and when it is finished.
    """

    def __init__(
        self,
        title: str,
        *,
        unit: str,
        total: int | None = None,
        show: bool | None = None,
        every: float = EVERY_SECONDS,
    ) -> None:
        self._title, self._unit, self._total, self._every = title, unit, total, every
        self._show = sys.stderr.isatty() if show is None else show
        self._start = time.monotonic()
        self._drawn_at = float("-inf")
        self._done = 0
        self._note = ""
        self._bar: _Bar | None = None
        self._is_logged = False

    @property
    def is_due(self) -> bool:
        """True if an update would be drawn now, so that callers compute what they pass only then."""
        now = time.monotonic()
        return self._show and now - self._start >= QUIET_SECONDS and now - self._drawn_at >= self._every

    def update(self, done: int, *, total: int | None = None, note: str = "") -> None:
        """Set how many units are done. ``total``, and the ``note`` after the numbers, stay until they are replaced."""
        self._done, self._note = done, note or self._note
        self._total = self._total if total is None else total
        if self.is_due:
            self._draw()
        if not self._is_logged and time.monotonic() - self._start >= QUIET_SECONDS and not self._is_done:
            self._is_logged = True
            of = "" if self._total is None else f" of {self._total:,}"
            log.info("%s: %s%s %s so far; it goes on.", self._title, f"{self._done:,}", of, self._unit)

    def tick(self) -> None:
        """Show that the work goes on, if nothing new is done."""
        self.update(self._done)

    @property
    def _is_done(self) -> bool:
        return self._total is not None and self._done >= self._total

    def _draw(self) -> None:
        self._drawn_at = time.monotonic()
        if self._bar is None:
            try:
                self._bar = _TqdmBar(self._title, self._unit, self._done, self._total)
            except ImportError:
                self._bar = _PlainBar(self._title, self._unit)
        self._bar.draw(self._done, self._total, self._note)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._draw()
            self._bar.close()
        seconds = time.monotonic() - self._start
        if kind is None and seconds >= QUIET_SECONDS:
            log.info("%s: %s %s in %.1f s.", self._title, f"{self._done:,}", self._unit, seconds)


class _Bar(Protocol):
    def draw(self, done: int, total: int | None, note: str) -> None: ...

    def close(self) -> None: ...


class _PlainBar:
    def __init__(self, title: str, unit: str) -> None:
        self._title, self._unit = title, unit

    def draw(self, done: int, total: int | None, note: str) -> None:
        line = f"{done:,} {self._unit}"
        if total is not None:
            filled = min(WIDTH, WIDTH * done // max(1, total))
            line = f"[{'#' * filled}{'-' * (WIDTH - filled)}] {done:,}/{total:,} {self._unit}"
        line = f"{line}, {note}" if note else line
        print(f"\r\033[Kmidepoch: {self._title} {line}", end="", file=sys.stderr, flush=True)  # noqa: T201

    def close(self) -> None:
        print(file=sys.stderr, flush=True)  # noqa: T201


class _TqdmBar:
    def __init__(self, title: str, unit: str, done: int, total: int | None) -> None:
        from tqdm import tqdm

        class Unwatched(tqdm):  # type: ignore[misc]
            """tqdm without its monitor thread: a process that is forked later would copy that thread's locks."""

            monitor_interval = 0

        self._bar = Unwatched(desc=f"midepoch: {title}", unit=f" {unit}", initial=done, total=total, file=sys.stderr)

    def draw(self, done: int, total: int | None, note: str) -> None:
        self._bar.n, self._bar.total = done, total
        self._bar.set_postfix_str(note, refresh=False)
        self._bar.refresh()

    def close(self) -> None:
        self._bar.close()
