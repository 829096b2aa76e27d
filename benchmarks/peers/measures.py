"""What is measured, in the process of a contender. Each function returns named figures."""

import gc
import json
import os
import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from math import inf
from types import ModuleType
from typing import Any

from benchmarks.peers import work
from benchmarks.peers.footprint import TICK, Footprint, processor_seconds_of_tree
from benchmarks.peers.view import NotOfferedError, View

Figures = dict[str, float]
LONGEST, TURNS = 2, 3
MOST_READ = 1_000_000  # rows: beyond that, states are computed, by those contenders that can
ROUND = 4  # states are taken after a multiple of so many batches: some libraries have one only when workers are level


class RefusedError(Exception):
    """The library raised an error when its own state was loaded."""


def speed(
    contender: ModuleType, view: View, *, ahead: int, seconds: float, per_row: int = 1, tokens: bool = False
) -> Figures:
    """Rows a second by the clock, and rows a second of processor time of the process and its workers.

    Both times ``per_row``; with ``tokens``, tokens without padding in place of rows. A busy machine changes the first
    and hardly the second.

    Passes are timed to their end, until there are enough ``seconds`` of them. Of passes with workers, the first
    ``ahead`` rows are left out, as many as libraries make ahead while their workers start: they would count as speed,
    and all queues are empty behind them, because this loop does nothing but receive. Without workers ``ahead`` is 0:
    passes are timed from their beginning. A pass that takes twice as long as was asked for, from its first item on,
    ends there.
    """
    loader = contender.load(view)
    count: Callable[[Any], int] = work.tokens_of if tokens else work.rows_of if view.batch_size else _one
    rows, clock, worked = 0, 0.0, 0.0
    while clock < seconds:
        before, begun = processor_seconds_of_tree(os.getpid()), time.perf_counter()
        items = iter(loader)
        if ahead:
            _take(items, count, rows=ahead)
            before, begun = processor_seconds_of_tree(os.getpid()), time.perf_counter()
        received, ended = _take(items, count, seconds=LONGEST * seconds, least=TURNS * max(view.workers, 1))
        if not received:
            raise RuntimeError(f"a pass has not more than {ahead} rows")
        rows, clock = rows + received, clock + ended - begun
        worked += processor_seconds_of_tree(os.getpid()) - before
    _close(loader, items)
    return {"value": rows * per_row / clock, "worked": rows * per_row / max(worked, TICK)}


def _one(_: Any) -> int:
    return 1


def _take(
    items: Iterator[Any], count: Callable[[Any], int], *, rows: float = inf, seconds: float = inf, least: int = 1
) -> tuple[int, float]:
    """Take items until there are enough rows or the time since the first item is over, and at least some.

    Returns the number of rows that came, and when the last one came.
    """
    received, last, deadline = 0, time.perf_counter(), inf
    for number, item in enumerate(items, start=1):
        received += count(item)
        last = time.perf_counter()
        deadline = min(deadline, last + seconds)
        if number >= least and (received >= rows or last >= deadline):
            break
    return received, last


def start(contender: ModuleType, view: View, *, begun: float) -> Figures:
    """Milliseconds from the start of the process to the first batch; ``begun`` is the machine's monotonic clock."""
    loader = contender.load(view)
    items = iter(loader)
    next(items)
    taken = 1e3 * (time.monotonic() - begun)
    _close(loader, items)
    return {"value": taken}


def resume(contender: ModuleType, view: View, *, rows: int, at: float, kept: dict[str, Any]) -> Figures:
    """Milliseconds to open the data, load a state and receive the first batch. ``kept`` has earlier rounds' states."""
    key = repr((view, at))
    if key not in kept:
        kept[key] = _state_after(contender, view, int(rows * at))
    begun = time.perf_counter()
    loader = _stateful(contender, view)
    loader.load_state_dict(kept[key])
    items = iter(loader)
    next(items)
    taken = 1e3 * (time.perf_counter() - begun)
    _close(loader, items)
    return {"value": taken}


def _state_after(contender: ModuleType, view: View, rows: int) -> Any:
    loader = _stateful(contender, view)
    if rows > MOST_READ:
        return contender.resume_point(view, loader, rows)
    items = iter(loader)
    for _ in islice(items, max(rows // (view.batch_size or 1) // ROUND, 1) * ROUND):
        pass
    state = loader.state_dict()
    _close(loader, items)
    return pickle.loads(pickle.dumps(state))


def padding(contender: ModuleType, view: View) -> Figures:
    """The share of a pass that is padding, in percent."""
    tokens = places = 0
    for batch in contender.load(view):
        tokens += work.tokens_of(batch)
        places += batch["attention_mask"].numel()
    return {"value": 100 * (1 - tokens / places)}


def state(contender: ModuleType, view: View, *, batches: int) -> Figures:
    """The size of a state in the middle of an epoch, and the microseconds of ``state_dict()``."""
    loader = _stateful(contender, view)
    items = iter(loader)
    for _ in islice(items, batches):
        pass
    times = []
    for _ in range(20):
        begun = time.perf_counter()
        taken = loader.state_dict()
        times.append(time.perf_counter() - begun)
    _close(loader, items)
    return {"bytes": _size(taken), "time": 1e6 * sorted(times)[len(times) // 2]}


def _size(state: Any) -> int:
    try:
        return len(json.dumps(state))
    except TypeError:
        return len(pickle.dumps(state))


def exact(contender: ModuleType, view: View, *, batches: int, workers_after: int) -> Figures:
    """Rows lost and repeated: a run is stopped and resumed, and compared with one that was not."""
    whole, _ = _received(contender, view, upto=None)
    received, state = _received(contender, view, upto=batches)
    try:
        rest, _ = _received(contender, replace(view, workers=workers_after), upto=None, state=state)
    except Exception as error:
        raise RefusedError(f"{type(error).__name__}: {error}") from error
    received += rest
    return {"lost": (whole - received).total(), "repeated": (received - whole).total()}


def _received(
    contender: ModuleType, view: View, *, upto: int | None, state: bytes | None = None
) -> tuple[Counter[int], bytes]:
    """The rows of some batches, and the state after them."""
    loader = _stateful(contender, view)
    if state is not None:
        loader.load_state_dict(pickle.loads(state))
    items, received = iter(loader), Counter[int]()
    for batch in islice(items, upto):
        received.update(work.numbers_of(batch))
    after = b"" if upto is None else pickle.dumps(loader.state_dict())
    _close(loader, items)
    return received, after


def memory(contender: ModuleType, view: View, *, epochs: int) -> Figures:
    """The highest memory in MB of the process and its workers in one epoch, and what the last epoch adds to it."""
    with Footprint() as footprint:
        loader = contender.load(view)
        peaks = []
        for _ in range(epochs):
            for _ in loader:
                pass
            peaks.append(footprint.peak_since_last() / 1e6)
    _close(loader)
    return {"peak": peaks[0], "growth": peaks[-1] - peaks[min(1, len(peaks) - 1)]}


def _stateful(contender: ModuleType, view: View) -> Any:
    loader = contender.load(view)
    if not hasattr(loader, "load_state_dict"):
        raise NotOfferedError("it has no state")
    return loader


def _close(loader: Any, items: Any = None) -> None:
    """Let a loader's workers go. What has no ``close`` does so when it is freed."""
    for one in (items, loader):
        if hasattr(one, "close"):
            one.close()
    del loader, items
    gc.collect()


MEASURES: dict[str, Callable[..., Figures]] = {
    "speed": speed,
    "start": start,
    "resume": resume,
    "padding": padding,
    "state": state,
    "exact": exact,
    "memory": memory,
}
