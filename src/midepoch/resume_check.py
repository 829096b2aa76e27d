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
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate, zip_longest
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from midepoch._common.checks import check_integer, count, shortened

SECONDS_TO_EXIT = 10
Row = tuple[str, str]
"""What a row is known by, and a hash of its content."""
Layout = Mapping[str, int]
"""What ``make_loader`` gets in each rank, of ``world_size`` and ``num_workers``."""
COLORS = ["white", "lightgray", "tab:green", "tab:orange", "tab:red"]


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
        pictures = [one.picture or [0] * self.rows for one in self.resumes]
        axes.imshow(pictures, ListedColormap(COLORS), vmin=0, vmax=4, aspect="auto", interpolation="nearest")
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
    usual, others = _layouts(make_loader)
    task = _Task(make_loader=make_loader, key=key, timeout=timeout, layout=usual, most=2 * steps)
    base = task.run()
    expected, whole = _rows(base), all(rank.ended for rank in base)
    length = min(steps, *(len(rank.batches) for rank in base))
    if length < 2:
        raise ValueError(f"The loader yields {length} batch: no place to stop. Give it more rows, or smaller batches.")
    name, times = Counter(name for name, _ in expected).most_common(1)[0]
    if times > 1:
        raise ValueError(
            f"Two rows or batches of the uninterrupted run are the same: {name}. Pass a key that is unique in an "
            "epoch, and let ranks not be padded."
        )
    middle = length // 2
    stops = sorted({1, middle, length - 1})
    stopped = replace(task, stops=stops, most=stops[-1], kill=kill).run()
    for row, other in zip(_rows(stopped), expected, strict=False):
        if row != other:
            raise ValueError(
                f"Two runs from the beginning differ: {row[0]} and {other[0]}. So no resume can be judged. Seed the "
                "shuffle and random augmentations, or do not let state_dict() change what comes next."
            )
    resumes: list[Resume] = []

    def resume(before: list[Row], states: list[bytes], on: Layout, step: int, *, again: bool = False) -> None:
        """Resume after a step, and ``again`` half-way from there to the end."""
        ranks, same, later = on.get("world_size", 1), on == usual, (length - step) // 2 * again
        batches = len(expected) if whole else -(-(length - step) * len(states) // ranks)
        states = states if same else states[:1] * ranks
        try:
            run = replace(task, layout=on, states=states, stops=[later], most=batches).run()
        except UnfitError as error:
            good = not same and str(error).startswith("refused")
            resumes.append(Resume(step=step, on=_words(on), verdict=str(error), good=good))
            return
        ended = whole or all(rank.ended for rank in run)
        found = _compare(expected, before, _rows(run), step=step, on=_words(on), same=same, ended=ended)
        resumes.append(found)
        if later and found.good:
            resume(before + _rows(run, later), [rank.states[later] for rank in run], on, step + later)
            resumes[-1] = replace(resumes[-1], on=f"{_words(on)}, the second resume")

    for stop in stops:
        resume(_rows(stopped, stop), [rank.states[stop] for rank in stopped], usual, stop, again=stop == middle)
    for on in others:
        resume(_rows(stopped, middle), [rank.states[middle] for rank in stopped], on, middle)
    return ResumeReport(unit="batch" if key is None else "row", rows=len(expected), whole=whole, resumes=resumes)


def _layouts(make_loader: Callable[..., Any]) -> tuple[Layout, list[Layout]]:
    """The ranks and workers of the run, and others that should resume it, as ``make_loader`` takes them."""
    try:
        pickle.dumps(make_loader)
        parameters = inspect.signature(make_loader).parameters
    except Exception as error:
        raise TypeError(
            f"A new process cannot call {shortened(make_loader)}: {error}. Pass a function that returns a loader, and "
            "define it with def in a module, outside of functions and classes."
        ) from error
    usual, others = dict[str, int](), list[Layout]()
    if "num_workers" in parameters:
        default = parameters["num_workers"].default
        usual["num_workers"] = default if isinstance(default, int) and default > 0 else 2
        others += [{"num_workers": number} for number in (0, usual["num_workers"] + 1)]
    if {"rank", "world_size"} <= {*parameters}:
        usual["world_size"] = 2
        others += [{"world_size": number} for number in (1, 3)]
    return usual, [{**usual, **other} for other in others]


def _words(layout: Layout) -> str:
    nouns = {"rank": "world_size", "worker": "num_workers"}
    return " of ".join(count(noun, layout[name]) for noun, name in nouns.items() if name in layout) or "the same loader"


def _compare(
    expected: list[Row], before: list[Row], after: list[Row], *, step: int, on: str, same: bool, ended: bool
) -> Resume:
    """What the rows after a resume are, if those before the stop and after it should be the expected ones."""
    places = {name: place for place, (name, _) in enumerate(expected)}
    times, received = Counter(name for name, _ in before + after), {name for name, _ in before}
    known = [places[name] for name, _ in after if name in places]
    reach = len(expected) if ended else max(known, default=-1) + 1 if same else 0
    fresh = [places[name] for name, _ in dict.fromkeys(after) if name in places and name not in received]
    late = [place for place, top in zip(fresh, accumulate(fresh, max), strict=True) if place < top]
    faults = {
        "loses": [name for name, _ in expected[:reach] if not times[name]],
        "repeats": [name for name, _ in dict.fromkeys(after) if times[name] > 1],
        "changes": [row[0] for row in after if row[0] not in places or row != expected[places[row[0]]]],
        "delivers out of order": [expected[place][0] for place in late],
    }
    words = {what: f"{what} {len(names):,}" for what, names in faults.items() if names}
    if "loses" in words and places[faults["loses"][0]] == len(before):
        words["loses"] += " from right after the stop, which were read ahead"
    if "repeats" in words:
        words["repeats"] += " before the stop"
    over = ["starts over from the beginning"] if known and known[0] == 0 else []
    bad = [what for what in words if same or what != "delivers out of order"]
    return Resume(
        step=step,
        on=on,
        verdict="; ".join([*over, *words.values()]) + ("" if bad else ", each once") if words else "exact",
        good=not bad,
        lost=len(faults["loses"]) if same or ended else None,
        repeated=len(faults["repeats"]),
        changed=len(faults["changes"]),
        out_of_order=len(late),
        example="; ".join(f"{what} {faults[what][0]}" for what in bad) or None,
        picture=[
            3 if times[name] > 1 else 1 if name in received else 2 if times[name] else 4 * (place < reach)
            for name, place in places.items()
        ],
    )


class UnfitError(ValueError):
    """A loader that cannot be judged, or does not resume. The message is for its user."""


class _Delivered(NamedTuple):
    """What a rank delivered: the rows of each batch, states by step, and whether its epoch ended."""

    batches: list[list[Row]]
    states: dict[int, bytes]
    ended: bool


def _rows(ranks: Sequence[_Delivered], steps: int | None = None) -> list[Row]:
    """The rows of the first steps of all ranks, step by step."""
    turns = zip_longest(*(rank.batches[:steps] for rank in ranks), fillvalue=())
    return [row for turn in turns for batch in turn for row in batch]


@dataclass(frozen=True, kw_only=True)
class _Task:
    """A run in which each rank reads a loader in a process of its own."""

    make_loader: Callable[..., Any]
    key: str | int | None
    timeout: float
    layout: Layout
    most: int
    """How many batches a rank reads."""
    states: Sequence[bytes] | None = None
    stops: Sequence[int] = ()
    """The steps after which states are saved."""
    kill: bool = False

    def run(self) -> list[_Delivered]:
        """What the ranks delivered. No process is left."""
        context, method = multiprocessing.get_context("spawn"), multiprocessing.get_start_method(allow_none=True)
        running: dict[int, tuple[BaseProcess, Path]] = {}
        answers: dict[Path, _Delivered] = {}
        with TemporaryDirectory() as folder:
            try:
                for rank in range(self.layout.get("world_size", 1)):
                    file = Path(folder, str(rank))
                    process: BaseProcess = context.Process(target=_answer, args=(file, method, self, rank))
                    process.start()
                    running[process.sentinel] = process, file
                while waiting := [one for one, (_, file) in running.items() if file not in answers]:
                    for process, file in map(running.__getitem__, wait(waiting)):  # type: ignore[arg-type]
                        answers[file] = self._received(process, file)
            finally:
                for process, _ in running.values():
                    with suppress(ProcessLookupError):  # its workers are in its process group
                        os.killpg(process.pid or 0, signal.SIGKILL)
                    process.kill()
                    process.join()
        return [answers[file] for _, file in running.values()]

    def _received(self, process: BaseProcess, file: Path) -> _Delivered:
        """The answer of a process that has ended. Raises what went wrong."""
        process.join()
        if file.exists():
            answer: _Delivered | UnfitError = pickle.loads(file.read_bytes())
            if isinstance(answer, UnfitError):
                raise answer
            return answer
        if process.exitcode == -signal.SIGALRM:
            hangs = f"The loader hangs: no batch in {self.timeout:g} s"
            raise UnfitError(f"{hangs}. Look for workers that wait for each other, or allow more with timeout.")
        raise UnfitError(
            f"The process of the loader ended with exit code {process.exitcode}. See what it printed. A script that "
            "calls check_resume must do so below `if __name__ == '__main__':`."
        )

    def read(self, rank: int) -> _Delivered:
        """Read the batches of a rank. A signal ends the process if one takes too long."""
        signal.setitimer(signal.ITIMER_REAL, self.timeout)
        own = {"rank": rank} if "world_size" in self.layout else {}
        loader = self.make_loader(**self.layout, **own)
        missing = [name for name in ("__iter__", "state_dict", "load_state_dict") if not hasattr(loader, name)]
        if missing:
            raise UnfitError(
                f"make_loader returned {type(loader).__name__}, which has no {' and no '.join(missing)}. Return a "
                "loader that has a state, such as torchdata's StatefulDataLoader, or a small class around yours."
            )
        with _explained("The loader failed" if self.states is None else "refused"):
            if self.states is not None:
                loader.load_state_dict(pickle.loads(self.states[rank]))
            batches = iter(loader)
            batch = next(batches, None)
        got, states = list[list[Row]](), dict[int, bytes]()
        while batch is not None:
            if not getattr(loader, "is_padding", False):
                got.append(rows_of(batch, self.key))
            if len(got) in self.stops:
                with _explained("The state cannot be pickled, so no checkpoint can hold it"):
                    states[len(got)] = pickle.dumps(loader.state_dict())
            if len(got) == self.most:
                break
            signal.setitimer(signal.ITIMER_REAL, self.timeout)
            batch = next(batches, None)
        if self.states is None and not got:
            raise UnfitError("The loader yields nothing. Check its files, and that its shards are no fewer than ranks.")
        return _Delivered(got, states, batch is None)


def _answer(file: Path, start_method: str | None, task: _Task, rank: int) -> None:
    """The process of a rank: read, write what was delivered or what went wrong, and be killed if that is asked for."""
    os.setpgid(0, 0)
    multiprocessing.set_start_method(start_method, force=True)  # of a loader's workers; else that of this process
    os.dup2(2, 1)  # what libraries print is no answer of the command line
    try:
        with _explained("The loader failed"):
            answer: _Delivered | UnfitError = task.read(rank)
    except UnfitError as error:
        answer = error
        if error.__cause__ is not None and not str(error).startswith("refused"):
            traceback.print_exc()
    signal.setitimer(signal.ITIMER_REAL, 0)
    file.write_bytes(pickle.dumps(answer))
    if task.kill:
        os.killpg(0, signal.SIGKILL)
    signal.setitimer(signal.ITIMER_REAL, SECONDS_TO_EXIT)  # then it is ended


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Say what an error means. Of its text the last line: errors of torch's workers hold a traceback before it."""
    try:
        yield
    except UnfitError:
        raise
    except Exception as error:
        text = (str(error).strip().splitlines() or ["no message"])[-1].strip()
        raise UnfitError(f"{what}: {type(error).__name__}: {text}") from error


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
        raise UnfitError(
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
