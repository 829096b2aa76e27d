"""What a checkpoint holds: epoch, lanes, turn, where each lane stands. Plain values, no machine, no I/O."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Literal, Self

from midepoch.checkpoint.lanes import Cursor, LanePosition
from midepoch.errors import CheckpointMismatchError

VERSION = 1
AppendedFiles = tuple[tuple[tuple[int, int], ...], ...]
"""The files of which the parts of an epoch's order were made before others were added, as stretches of numbers."""
MOST = 1 << 20
"""More lanes or readers than any cluster has; a state that names more is damaged."""


@dataclass(frozen=True, slots=True)
class LanePositions:
    """Where all lanes stand, as runs of ``(how many lanes, where they stand)``."""

    runs: tuple[tuple[int, LanePosition], ...] = ()

    @classmethod
    def pack(cls, pairs: Iterable[tuple[int, LanePosition]]) -> Self:
        """Join neighbours that stand alike."""
        packed: list[tuple[int, LanePosition]] = []
        for count, position in pairs:
            if packed and packed[-1][1] == position:
                packed[-1] = (packed[-1][0] + count, position)
            else:
                packed.append((count, position))
        return cls(tuple(packed))

    def __len__(self) -> int:
        return sum(count for count, _ in self.runs)

    def __getitem__(self, lane: int) -> LanePosition:
        ends = list(accumulate(count for count, _ in self.runs))
        return self.runs[bisect_right(ends, lane)][1]

    def expand(self) -> list[LanePosition]:
        """One entry a lane."""
        return [position for count, position in self.runs for _ in range(count)]

    @property
    def in_step(self) -> bool:
        """Whether no lane has items delivered ahead of its cursor."""
        return not any(position.delivered_ahead for _, position in self.runs)

    def advanced(self, turn: int, turns: int, rows: int) -> "LanePositions":
        """Every lane moved by ``rows`` rows for each of the ``turns`` turns from ``turn`` on that is its own."""
        ends = list(accumulate(count for count, _ in self.runs))
        lanes = ends[-1]
        each, extra = divmod(turns, lanes)
        first = turn % lanes
        moved = []
        run = 0
        for begin, end in pairwise(sorted({0, first, (first + extra) % lanes, *ends})):
            run += begin >= ends[run]
            position, *rest = self.runs[run][1].cursor
            steps = each + ((begin - first) % lanes < extra)
            moved.append((end - begin, LanePosition((position + rows * steps, *rest))))
        return LanePositions.pack(moved)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderProgress:
    """What some of the readers delivered since the state's turn, where that is not known of all.

    The ranks of a uniform pipeline run in lockstep, so what the ``workers`` workers of one delivered holds for
    all: ``items`` has a number for each of them, or, in the state of a single worker, its own. Of other
    pipelines ``reader`` says whose part it is, ``turns`` how many turns it took, and ``shares`` holds
    ``(lane, end, cursor)`` for each lane of which it delivered something.
    """

    readers: int
    workers: int = 1
    items: tuple[int, ...] = ()
    reader: int | None = None
    turns: int = 0
    deliveries: tuple[tuple[int, int, Cursor], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The part as plain values."""
        if self.reader is None:
            return {"readers": self.readers, "workers": self.workers, "items": _plain_cursor(self.items)}
        deliveries = [[lane, end, _plain_cursor(cursor)] for lane, end, cursor in self.deliveries]
        return {"readers": self.readers, "reader": self.reader, "turns": self.turns, "shares": deliveries}


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A checkpoint. ``lanes`` is None where the epoch has not begun: it is dealt when it does."""

    epoch: int = 0
    lanes: int | None = None
    mode: Literal["file", "example"] = "example"
    turn: int = 0
    item_rows: int = 1
    """How many rows make an item, by ``batch``: what a lane's ordinals count."""
    positions: LanePositions = LanePositions()
    reader_progress: ReaderProgress | None = None
    appended: AppendedFiles = ()

    def to_dict(self, fingerprint: Mapping[str, Any]) -> dict[str, Any]:
        """The state as plain values."""
        return {
            "version": VERSION,
            "epoch": self.epoch,
            "lanes": self.lanes,
            "mode": self.mode,
            "turn": self.turn,
            "item_rows": self.item_rows,
            "cursors": [[count, _plain_standing(position)] for count, position in self.positions.runs],
            "part": None if self.reader_progress is None else self.reader_progress.to_dict(),
            "fingerprint": {
                "data": dict(fingerprint["data"]),
                "pipeline": [dict(stage) for stage in fingerprint["pipeline"]],
            },
        } | ({"grown": [[list(files) for files in group] for group in self.appended]} if self.appended else {})

    @classmethod
    def from_dict(cls, values: Any) -> Self:
        """Read a state back; whatever is wrong with it is told."""
        if not isinstance(values, Mapping) or "version" not in values:
            raise CheckpointMismatchError(
                f"This is not a midepoch state: expected a dict with the key 'version', got {_short(values)}. "
                "Pass what state_dict() returned."
            )
        version = values["version"]
        if version != VERSION:
            raise CheckpointMismatchError(
                f"The state has version {version!r}; this midepoch reads version {VERSION}. "
                "Load it with the midepoch release that wrote it, or a later one."
            )
        try:
            state = cls(
                epoch=_whole(values["epoch"]),
                lanes=None if values["lanes"] is None else _whole(values["lanes"], least=1, most=MOST),
                mode="file" if _one_of(values["mode"], ("example", "file")) == "file" else "example",
                turn=_whole(values["turn"]),
                item_rows=_whole(values["item_rows"], least=1),
                positions=LanePositions.pack(
                    (_whole(count, least=1), _read_standing(position)) for count, position in values["cursors"]
                ),
                reader_progress=None if values["part"] is None else _read_reader_progress(values["part"]),
                appended=tuple(_read_file_ranges(group) for group in values.get("grown", ())),
            )
            if len(state.positions) != (state.lanes or 0):
                raise ValueError(f"{len(state.positions)} cursors for {state.lanes} lanes")
            if state.reader_progress is not None and state.reader_progress.readers % state.reader_progress.workers:
                raise ValueError(
                    f"{state.reader_progress.readers} readers in ranks of {state.reader_progress.workers} workers"
                )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise CheckpointMismatchError(
                f"The state is damaged ({type(error).__name__}: {error}). Load an earlier checkpoint."
            ) from error
        return state


def _plain_cursor(cursor: Cursor) -> int | list[int]:
    return cursor[0] if len(cursor) == 1 else list(cursor)


def _plain_standing(position: LanePosition) -> Any:
    cursor = _plain_cursor(position.cursor)
    return {"at": cursor, "done": list(position.delivered_ahead)} if position.delivered_ahead else cursor


def _read_cursor(value: Any) -> Cursor:
    return tuple(_whole(number) for number in value) if isinstance(value, list | tuple) else (_whole(value),)


def _read_standing(value: Any) -> LanePosition:
    if isinstance(value, Mapping):
        delivered_ahead = tuple(_whole(number) for number in value["done"])
        if list(delivered_ahead) != sorted(set(delivered_ahead)):
            raise ValueError(f"expected rising numbers, got {_short(delivered_ahead)}")
        return LanePosition(_read_cursor(value["at"]), delivered_ahead)
    return LanePosition(_read_cursor(value))


def _read_reader_progress(value: Any) -> ReaderProgress:
    readers = _whole(value["readers"], least=1, most=MOST)
    if "items" in value:
        return ReaderProgress(
            readers=readers, workers=_whole(value["workers"], least=1), items=_read_cursor(value["items"])
        )
    deliveries = tuple((_whole(lane), _whole(end, least=1), _read_cursor(at)) for lane, end, at in value["shares"])
    return ReaderProgress(
        readers=readers, reader=_whole(value["reader"]), turns=_whole(value["turns"]), deliveries=deliveries
    )


def _read_file_ranges(value: Any) -> tuple[tuple[int, int], ...]:
    ranges = tuple((_whole(begin), _whole(end)) for begin, end in value)
    bounds = [bound for files in ranges for bound in files]
    if not ranges or bounds != sorted(bounds):
        raise ValueError(f"expected rising ranges of files, got {_short(value)}")
    return ranges


def _whole(value: Any, *, least: int = 0, most: int = 1 << 62) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"expected a whole number from {least} to {most}, got {value!r}")
    return value


def _one_of(value: Any, allowed: Sequence[str]) -> str:
    if value not in allowed:
        raise ValueError(f"expected one of {', '.join(allowed)}, got {value!r}")
    return str(value)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
