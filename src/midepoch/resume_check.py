"""Does a loader resume exactly? Judges any object that iterates and has ``state_dict`` and ``load_state_dict``.

One run is not stopped. Others are stopped, and resumed in new processes. What all of them delivered is compared.
"""

import hashlib
import inspect
import multiprocessing
import os
import pickle
import signal
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate, zip_longest
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

from midepoch._common.checks import check_integer, count, shortened

SECONDS_TO_EXIT = 10
Row = tuple[str, str]
"""What a row is known by, and a hash of its content."""
COLORS = ["white", "lightgray", "tab:green", "tab:orange", "tab:red"]


class Readers(NamedTuple):
    """How many ranks read, and how many workers each of them has. None if ``make_loader`` does not take it."""

    ranks: int | None
    workers: int | None

    def __str__(self) -> str:
        words = [count(noun, n) for noun, n in (("rank", self.ranks), ("worker", self.workers)) if n is not None]
        return " of ".join(words) or "the same loader"

    def arguments(self, rank: int) -> dict[str, int]:
        """What ``make_loader`` gets."""
        given = {"rank": self.ranks and rank, "world_size": self.ranks, "num_workers": self.workers}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class Resume:
    """One resume, compared with the uninterrupted run."""

    step: int
    """The state was saved after so many batches of each rank."""
    on: str
    """The ranks and workers that resumed."""
    verdict: str
    """``exact``, or what is wrong."""
    good: bool
    lost: int | None = None
    """None if it is not known: the loader refused, or the epoch is longer than what was read."""
    repeated: int | None = None
    changed: int | None = None
    out_of_order: int | None = None
    """Rows that came after a row that is later in the uninterrupted run."""
    example: str | None = None
    """The first row that is wrong."""
    picture: list[int] = field(default_factory=list, repr=False)
    """For each row of the uninterrupted run: 1 came before the stop, 2 came once, 3 was repeated, 4 is lost."""


@dataclass(frozen=True, kw_only=True)
class ResumeReport:
    """What :func:`check_resume` found. Its text has a line for each resume."""

    unit: str
    """``row``, or ``batch`` without a key."""
    rows: int
    """How many of them the uninterrupted run delivered."""
    whole: bool
    """True if the uninterrupted run came to its end."""
    resumes: Sequence[Resume]

    @property
    def good(self) -> bool:
        """True if no resume was wrong. To refuse another number of ranks or workers is not wrong."""
        return all(one.good for one in self.resumes)

    def to_dict(self) -> dict[str, Any]:
        """All of it but the picture, for JSON."""
        resumes = [{name: value for name, value in asdict(one).items() if name != "picture"} for one in self.resumes]
        return {"good": self.good, "unit": self.unit, "rows": self.rows, "whole": self.whole, "resumes": resumes}

    def __str__(self) -> str:
        lines = (f"saved after step {one.step}, resumed on {one.on}: {one.verdict}" for one in self.resumes)
        examples = (f"\n    {one.example}" if one.example else "" for one in self.resumes)
        return "\n".join(map("".join, zip(lines, examples, strict=True)))

    def save_png(self, path: str | os.PathLike[str]) -> None:
        """Draw which rows each resume delivered. Needs matplotlib."""
        from matplotlib.colors import ListedColormap
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9, 1.5 + 0.4 * len(self.resumes)), layout="constrained")
        axes = figure.subplots()
        for number, one in enumerate(self.resumes):
            place = (0, self.rows, number + 0.4, number - 0.4)
            axes.imshow([one.picture or [0]], ListedColormap(COLORS), vmin=0, vmax=4, aspect="auto", extent=place)
        axes.set_ylim(len(self.resumes) - 0.5, -0.5)
        axes.set_yticks(range(len(self.resumes)), [f"step {one.step}, {one.on}" for one in self.resumes])
        axes.set_xlabel(f"{self.unit} of the uninterrupted run")
        axes.set_title("gray: before the stop; green: once; orange: repeated; red: lost", fontsize=10)
        figure.savefig(path)


def check_resume(
    make_loader: Callable[..., Any],
    *,
    key: str | int | None = None,
    steps: int = 200,
    kill: bool = False,
    timeout: float = 120,
) -> ResumeReport:
    """Judge how a loader resumes: which rows it loses, repeats, changes, or delivers out of order.

    ``make_loader`` is a function of a module. It returns an object that iterates over batches and has ``state_dict()``
    and ``load_state_dict()``. The states are loaded in new processes. If ``make_loader`` takes ``num_workers``, or
    ``rank`` and ``world_size``, other numbers of them resume too. Each rank loads its own state. Another number of
    ranks loads the state of rank 0.

    ``key`` is the column that identifies a row: of batches that are dicts of columns, lists of rows, or tuples, whose
    columns have numbers. Without a key, whole batches are compared. ``steps`` is how many batches are read of a longer
    epoch. ``kill`` ends the processes that saved a state with SIGKILL. A process that delivers no batch for ``timeout``
    seconds is reported as hung. Batches are left out while the loader has a true ``is_padding``.

        report = check_resume(make_loader, key="id", kill=True)
        assert report.good, report
    """
    check_integer("steps", steps, least=2)
    usual, others = _readers(make_loader)
    judge = _Judge(make_loader, key, timeout)
    base = judge.run(usual, most=2 * steps).checked()
    expected, whole, length = base.rows(), base.ended, min(steps, *map(len, base.batches))
    if length < 2:
        raise ValueError(f"The loader yields {length} batch: no place to stop. Give it more rows, or smaller batches.")
    twice = [name for (name, _), times in Counter(expected).items() if times > 1]
    if twice or len({name for name, _ in expected}) < len(expected):
        raise ValueError(
            f"Two rows or batches of the uninterrupted run are the same{f': {twice[0]}' if twice else ''}. Pass a key "
            "that is unique in an epoch, and let ranks not be padded."
        )
    middle = length // 2
    stops = sorted({1, middle, length - 1})
    stopped = judge.run(usual, stops=stops, most=None if kill else stops[-1]).checked()
    for row, other in zip(stopped.rows(), expected, strict=False):
        if row != other:
            raise ValueError(
                f"Two runs from the beginning differ: {row[0]} and {other[0]}. So no resume can be judged. Seed the "
                "shuffle and random augmentations, or do not let state_dict() change what comes next."
            )

    def resume(before: list[Row], states: list[bytes], on: Readers, step: int, again: int = 0) -> tuple["_Run", Resume]:
        ranks, same = on.ranks or 1, on == usual
        most = 2 * len(expected) if whole else -(-(length - step) * len(states) // ranks)
        run = judge.run(on, states=states if same else states[:1] * ranks, stops=[again], most=most)
        if run.failed:
            good = not same and run.failed.startswith("refused")
            return run, Resume(step=step, on=str(on), verdict=run.failed, good=good)
        known = whole or run.ended
        return run, _compare(expected, before, run.rows(), step=step, on=str(on), same=same, ended=known)

    resumes = []
    for stop in stops:
        again = (length - stop) // 2 if stop == middle else 0
        run, found = resume(stopped.rows(stop), stopped.state(stop), usual, stop, again)
        resumes.append(found)
        if again and found.good:
            _, found = resume(stopped.rows(stop) + run.rows(again), run.state(again), usual, stop + again)
            resumes.append(replace(found, on=f"{usual}, the second resume"))
    resumes += [resume(stopped.rows(middle), stopped.state(middle), on, middle)[1] for on in others]
    return ResumeReport(unit="batch" if key is None else "row", rows=len(expected), whole=whole, resumes=resumes)


def _readers(make_loader: Callable[..., Any]) -> tuple[Readers, list[Readers]]:
    """The ranks and workers of the run, and others that should resume it, as ``make_loader`` takes them."""
    try:
        pickle.dumps(make_loader)
        parameters = inspect.signature(make_loader).parameters
    except Exception as error:
        raise TypeError(
            f"A new process cannot call {shortened(make_loader)}: {error}. Pass a function that returns a loader, and "
            "define it with def in a module, outside of functions and classes."
        ) from error
    workers = None
    if "num_workers" in parameters:
        default = parameters["num_workers"].default
        workers = default if isinstance(default, int) and default > 0 else 2
    usual = Readers(2 if {"rank", "world_size"} <= {*parameters} else None, workers)
    others = [] if workers is None else [usual._replace(workers=number) for number in (0, workers + 1)]
    return usual, others + ([] if usual.ranks is None else [usual._replace(ranks=number) for number in (1, 3)])


def _compare(
    expected: list[Row], before: list[Row], after: list[Row], *, step: int, on: str, same: bool, ended: bool
) -> Resume:
    """What the rows after a resume are, if those before the stop and after it should be the expected ones."""
    places = {name: place for place, (name, _) in enumerate(expected)}
    times, received = Counter(name for name, _ in before + after), {name for name, _ in before}
    known = [places[name] for name, _ in after if name in places]
    reach = len(expected) if ended else max(known, default=-1) + 1 if same else 0
    fresh = [places[name] for name, _ in dict.fromkeys(after) if name in places and name not in received]
    faults = {
        "loses": [name for name, _ in expected[:reach] if not times[name]],
        "repeats": [name for name, _ in dict.fromkeys(after) if times[name] > 1],
        "changes": [row[0] for row in after if row[0] not in places or row != expected[places[row[0]]]],
        "delivers out of order": [
            expected[place][0] for place, top in zip(fresh, accumulate(fresh, max), strict=True) if place < top
        ],
    }
    edges = {len(before): " from right after the stop, which were read ahead", len(before) - 1: " before the stop"}
    words = [
        f"{what} {len(names):,}"
        + (edges.get(places[names[0]], "") if what == "loses" else edges[len(before) - 1] * (what == "repeats"))
        for what, names in faults.items()
        if names
    ]
    bad = [what for what, names in faults.items() if names and (same or what != "delivers out of order")]
    over = ["starts over from the beginning"] if known and known[0] == 0 else []
    picture = [
        3 if times[name] > 1 else 1 if name in received else 2 if times[name] else 4 * (place < reach)
        for name, place in places.items()
    ]
    lost, repeated, changed, late = map(len, faults.values())
    return Resume(
        step=step,
        on=on,
        verdict="; ".join(over + words) + ("" if bad else ", each once") if words else "exact",
        good=not bad,
        lost=lost if same or ended else None,
        repeated=repeated,
        changed=changed,
        out_of_order=late,
        example="; ".join(f"{what} {faults[what][0]}" for what in bad) or None,
        picture=picture,
    )


@dataclass(kw_only=True)
class _Run:
    """What the ranks of a run delivered, and their states."""

    batches: list[list[list[Row]]]
    states: dict[tuple[int, int], bytes] = field(default_factory=dict)
    ended: bool = True
    failed: str | None = None

    def checked(self) -> "_Run":
        if self.failed:
            raise ValueError(self.failed)
        return self

    def rows(self, steps: int | None = None) -> list[Row]:
        """Those of the first steps, step by step."""
        turns = zip_longest(*(batches[:steps] for batches in self.batches), fillvalue=())
        return [row for turn in turns for batch in turn for row in batch]

    def state(self, step: int) -> list[bytes]:
        return [self.states[step, rank] for rank in range(len(self.batches))]


class _Judge(NamedTuple):
    """Runs the ranks of a loader in processes of their own."""

    make_loader: Callable[..., Any]
    key: str | int | None
    timeout: float

    def run(
        self, readers: Readers, *, most: int | None, stops: Sequence[int] = (), states: Sequence[bytes] | None = None
    ) -> _Run:
        """Read up to ``most`` batches of each rank, and take states at the stops. None kills it after the last stop."""
        context, method = multiprocessing.get_context("spawn"), multiprocessing.get_start_method(allow_none=True)
        ranks: dict[int, tuple[BaseProcess, Connection]] = {}
        run = _Run(batches=[[] for _ in range(readers.ranks or 1)], failed="interrupted")
        try:
            for rank in range(readers.ranks or 1):
                here, there = context.Pipe(duplex=False)
                how = (self.make_loader, readers.arguments(rank), states and states[rank], self.key, stops, most)
                process: BaseProcess = context.Process(target=_deliver, args=(there, method, how))
                process.start()
                there.close()
                ranks[rank] = process, here
            self._collect(run, ranks, last=stops[-1] if most is None else None)
            return run
        finally:
            for process, here in ranks.values():
                process.join(0 if run.failed or most is None else SECONDS_TO_EXIT)
                with suppress(ProcessLookupError):  # its workers are in its process group
                    os.killpg(process.pid or 0, signal.SIGKILL)
                process.kill()
                process.join()
                here.close()

    def _collect(self, run: _Run, ranks: Mapping[int, tuple[BaseProcess, Connection]], *, last: int | None) -> None:
        reading, run.failed = list(ranks), None
        while reading and not run.failed:
            for rank in tuple(reading):
                kind, value = self._receive(*ranks[rank])
                batches = run.batches[rank]
                if kind == "batch":
                    batches.append(value)
                elif kind == "state":
                    run.states[len(batches), rank] = value
                elif kind == "failed":
                    run.failed = run.failed or value
                else:
                    run.ended = run.ended and value
                if kind in ("end", "failed") or (kind == "state" and len(batches) == last):
                    reading.remove(rank)

    def _receive(self, process: BaseProcess, here: Connection) -> tuple[str, Any]:
        """The next message of a process, or how it failed. Workers of a dead process may keep its pipe open."""
        ready = wait([here, process.sentinel], self.timeout)
        with suppress(EOFError):
            if here.poll():
                return here.recv()  # type: ignore[no-any-return]
        if not ready:
            what = f"The loader hangs: no batch in {self.timeout:g} s"
            return "failed", f"{what}. Look for workers that wait for each other, or allow more with timeout."
        process.join(SECONDS_TO_EXIT)
        return "failed", (
            f"The process of the loader ended with exit code {process.exitcode}. See what it printed. A script "
            "that calls check_resume must do so below `if __name__ == '__main__':`."
        )


class _UnfitError(Exception):
    """A loader that cannot be judged. The message is for its user."""


def _deliver(there: Connection, start_method: str | None, how: tuple[Any, ...]) -> None:
    """The process of a rank: send the rows of each batch, and states."""
    os.setpgid(0, 0)
    multiprocessing.set_start_method(start_method, force=True)  # of a loader's workers; else that of this process
    os.dup2(2, 1)  # what libraries print is no answer of the command line
    try:
        for message in _messages(*how):
            there.send(message)
    except BrokenPipeError:  # the process that asked is gone
        return
    except Exception as error:
        if not isinstance(error, _UnfitError):
            traceback.print_exc()
            error = _UnfitError(f"The loader failed: {_brief(error)}")
        there.send(("failed", str(error)))


def _messages(
    make_loader: Callable[..., Any],
    arguments: Mapping[str, int],
    state: bytes | None,
    key: str | int | None,
    stops: Sequence[int],
    most: int | None,
) -> Iterator[tuple[str, Any]]:
    loader = make_loader(**arguments)
    missing = [name for name in ("__iter__", "state_dict", "load_state_dict") if not hasattr(loader, name)]
    if missing:
        raise _UnfitError(
            f"make_loader returned {type(loader).__name__}, which has no {' and no '.join(missing)}. Return a loader "
            "that has a state, such as torchdata's StatefulDataLoader, or a small class around yours."
        )
    try:
        if state is not None:
            loader.load_state_dict(pickle.loads(state))
        batches = iter(loader)
        batch = next(batches, None)
    except Exception as error:
        if state is None:
            raise
        raise _UnfitError(f"refused: {_brief(error)}") from error
    step = 0
    while batch is not None and step != most:
        if not getattr(loader, "is_padding", False):
            step += 1
            yield "batch", rows_of(batch, key)
        if step in stops:
            yield "state", _pickled(loader.state_dict())
        if step != most:
            batch = next(batches, None)
    if state is None and not step:
        raise _UnfitError("The loader yields nothing. Check its files, and that its shards are no fewer than ranks.")
    yield "end", batch is None


def _brief(error: Exception) -> str:
    """The last line of an error: errors of torch's workers hold a traceback before it."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or ['no message'])[-1].strip()}"


def _pickled(state: Any) -> bytes:
    try:
        return pickle.dumps(state)
    except Exception as error:
        raise _UnfitError(
            f"The state cannot be pickled, so no checkpoint can hold it: {error}. Leave locks and files out of it."
        ) from error


def rows_of(batch: Any, key: str | int | None) -> list[Row]:
    """The rows of a batch by their key, or the whole batch."""
    plain = plain_values(batch)
    if key is None:
        return [(f"{shortened(plain)} #{_hash(plain)}", "")]
    try:
        if isinstance(plain, list) and all(isinstance(row, dict) for row in plain):
            return [(f"{key}={row[key]!r}", _hash(row)) for row in plain]
        keys = plain[int(key) if isinstance(plain, list) else key]
    except (LookupError, TypeError, ValueError) as error:
        raise _UnfitError(
            f"A batch has no column {key!r}: {shortened(batch)}. Pass the name of a column, the number "
            "of one of a tuple, or no key."
        ) from error
    if not isinstance(keys, list):
        return [(f"{key}={keys!r}", _hash(plain))]  # a batch that is one row
    columns = list(plain.values()) if isinstance(plain, dict) else plain
    even = all(isinstance(column, list) and len(column) == len(keys) for column in columns)
    rows = zip(*columns, strict=True) if even else [None] * len(keys)
    return [(f"{key}={name!r}", _hash(row)) for name, row in zip(keys, rows, strict=True)]


def plain_values(value: Any) -> Any:
    """Dicts, lists and numbers, of arrays, tensors and Arrow too."""
    if isinstance(value, Mapping):
        return {name: plain_values(inner) for name, inner in value.items()}
    for name in ("to_pydict", "to_pylist", "tolist", "tobytes"):
        if hasattr(value, name):
            return getattr(value, name)()
    return [plain_values(inner) for inner in value] if isinstance(value, list | tuple) else value


def _hash(value: Any) -> str:
    return hashlib.blake2b(repr(value).encode(), digest_size=8).hexdigest()
