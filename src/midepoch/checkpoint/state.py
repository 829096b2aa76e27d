"""What a checkpoint holds: epoch, lanes, turn, and the position of each lane. Plain values, no machine, no I/O.

A checksum covers every key that midepoch reads. Keys that front doors and frameworks add may be changed or dropped. The
checksum does not depend on the order of keys, and not on whether a list is a list, a tuple or an array. ``VERSION``
rises whenever ignoring a new key would deliver other rows.
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, Literal, NamedTuple, Self

from midepoch._common.checks import count, shortened
from midepoch._common.hashing import digest
from midepoch.checkpoint.digest import RowDigest
from midepoch.checkpoint.history import MODES, MOST_RANKS, History, read_history
from midepoch.checkpoint.lanes import Cursor, LaneAssignment, LanePosition
from midepoch.errors import CheckpointMismatchError

Edits = int | tuple["Edits", ...]
"""How many edits came after an epoch was cut into lanes: a number, or one for each part of a mixture. 0 is no edit."""
MOST_EDITS, MOST_DEPTH, MOST_PARTS = 1 << 10, 16, 1 << 16


def edits_of_part(edits: Edits, part: int) -> Edits:
    """The edits of a part of a mixture."""
    return edits[part] if isinstance(edits, tuple) else 0


def join_edits(parts: Sequence[Edits]) -> Edits:
    """The edits of all parts of a mixture as those of the mixture."""
    return tuple(parts) if any(parts) else 0


def add_edits(first: Edits, second: Edits) -> Edits:
    """The edits of both, which are of one pipeline."""
    if isinstance(first, int) and isinstance(second, int):
        return first + second
    parts = max(len(edits) for edits in (first, second) if isinstance(edits, tuple))
    return join_edits([add_edits(edits_of_part(first, part), edits_of_part(second, part)) for part in range(parts)])


def write_edits(edits: Edits) -> Any:
    """Plain values."""
    return edits if isinstance(edits, int) else [write_edits(part) for part in edits]


def read_edits(value: Any, depth: int = 0) -> Edits:
    """Read edits back. Raises ``ValueError`` if no run can have written them."""
    if isinstance(value, list | tuple) and 0 < len(value) <= MOST_PARTS and depth < MOST_DEPTH:
        edits = join_edits([read_edits(part, depth + 1) for part in value])
        if edits:
            return edits
    if type(value) is not int or not 0 <= value <= MOST_EDITS:
        raise ValueError(f"expected at most {MOST_EDITS} edits, or those of each part, got {shortened(value)}")
    return value


MOST_STEPS = 1 << 22
"""The most turns that readers take before they repeat, and the most items delivered ahead, over all lanes."""
ALWAYS_POSSIBLE = 1 << 14
"""Up to this number of lanes and readers any number of rows is possible. More, and more than rows, are damage."""


def check_consistent(state: "State") -> None:
    """Raise ``ValueError`` if parts of a state contradict each other, or no computer could resume from it."""
    if state.lanes is None:
        if state.turn or state.positions.runs or state.reader_progress is not None or state.appended or state.edits:
            raise ValueError("it has no lanes, but says that something of them was delivered")
        return
    if len(state.positions) != state.lanes:
        raise ValueError(f"{count('cursor', len(state.positions))} for {count('lane', state.lanes)}")
    if sum(lanes * len(position.delivered_ahead) for lanes, position in state.positions.runs) > MOST_STEPS:
        raise ValueError(f"more than {MOST_STEPS:,} items were delivered ahead of others")
    if state.reader_progress is not None:
        _check_progress(state, state.reader_progress)


def check_neighbours(state: "State") -> None:
    """Raise ``ValueError`` unless the other epochs of a state are the ones before and after it, by the same reader."""
    epochs = [one.epoch for one in (*state.earlier, state, *state.later)]
    if epochs != list(range(state.epoch - len(state.earlier), state.epoch + len(state.later) + 1)):
        raise ValueError(f"its epochs are {epochs}")
    parts = [one.reader_progress for one in state.earlier]
    if state.earlier and state.reader_progress is not None:
        parts.append(state.reader_progress)
    readers = {None if part is None or part.reader is None else (part.reader, part.readers) for part in parts}
    if len(readers) > 1 or None in readers:
        raise ValueError("it does not say for one reader what was delivered of the epochs before")
    if any(one.lanes is None or one.reader_progress is not None for one in state.later):
        raise ValueError("it does not say for all readers what was delivered of the epochs after")


def _check_progress(state: "State", progress: "ReaderProgress") -> None:
    """Raise ``ValueError`` unless a reader can have delivered what its progress says."""
    assignment = state.assigned_to(progress.readers)
    if assignment.readers * assignment.period > MOST_STEPS:
        raise ValueError(f"{count('reader', assignment.readers)} of {count('lane', assignment.lanes)}")
    if progress.reader is None:
        if len(progress.items) not in (1, progress.workers) or assignment.readers % progress.workers:
            raise ValueError(f"items of {count('worker', len(progress.items))}, in ranks of {progress.workers}")
        return
    slots = {lane: slot for slot, lane in enumerate(assignment.rotation(progress.reader))}
    for lane, end, _ in progress.deliveries:
        slot = slots.pop(lane, None)
        if slot is None or end - 1 not in assignment.ordinals(progress.reader, slot, progress.turns_taken):
            raise ValueError(
                f"reader {progress.reader} of {progress.readers} delivered up to item {end} of lane {lane} in "
                f"{count('turn', progress.turns_taken)}"
            )


def check_scale(state: "State", rows: int) -> None:
    """Raise if a state has far more lanes or readers than its data has rows: they would only take memory and time."""
    epochs = (*state.earlier, state, *state.later)
    lanes = max(one.lanes or 1 for one in epochs)
    readers = max(1 if one.reader_progress is None else one.reader_progress.readers for one in epochs)
    for noun, number in (("lane", lanes), ("reader", readers)):
        if number > max(rows, ALWAYS_POSSIBLE):
            raise CheckpointMismatchError.damaged(f"it has {count(noun, number)} for {count('row', rows)}")


AppendedFiles = tuple[tuple[tuple[int, int], ...], ...]
"""Files were appended to an epoch under way: the files that it had before each time, as ranges of their numbers."""
MOST_EPOCHS = 1 << 53
"""The last epoch that set_epoch accepts."""
MOST_ITEM_ROWS = 1 << 40
"""More rows than any batch has."""
MOST_APPENDED = 16
"""How often files may be appended to one epoch."""
MOST_APART = 4
"""How many epochs one reader may be ahead of another when their states are merged."""


@dataclass(frozen=True, slots=True)
class LanePositions:
    """The positions of all lanes, as runs of ``(number of lanes, their position)``."""

    runs: tuple[tuple[int, LanePosition], ...] = ()

    @classmethod
    def pack(cls, runs: Iterable[tuple[int, LanePosition]]) -> Self:
        """Join neighbouring runs that have the same position."""
        packed: list[tuple[int, LanePosition]] = []
        for lanes, position in runs:
            if packed and packed[-1][1] == position:
                packed[-1] = (packed[-1][0] + lanes, position)
            else:
                packed.append((lanes, position))
        return cls(tuple(packed))

    def __len__(self) -> int:
        return sum(lanes for lanes, _ in self.runs)

    def expand(self) -> list[LanePosition]:
        """One entry for each lane."""
        return [position for lanes, position in self.runs for _ in range(lanes)]

    @property
    def in_step(self) -> bool:
        """True if no lane has items delivered ahead of its cursor."""
        return not any(position.delivered_ahead for _, position in self.runs)

    def advanced(self, turn: int, turn_count: int, item_rows: int) -> "LanePositions":
        """The positions after ``turn_count`` turns from ``turn`` on, each of which moves its lane by ``item_rows``."""
        ends = list(accumulate(lanes for lanes, _ in self.runs))
        lanes = ends[-1]
        each, extra = divmod(turn_count, lanes)
        first = turn % lanes
        moved = []
        run = 0
        for begin, end in pairwise(sorted({0, first, (first + extra) % lanes, *ends})):
            run += begin >= ends[run]
            rows, *rest = self.runs[run][1].cursor
            items = each + ((begin - first) % lanes < extra)
            moved.append((end - begin, LanePosition((rows + item_rows * items, *rest))))
        return LanePositions.pack(moved)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderProgress:
    """What one reader, or one rank's workers, delivered since the state's turn. Such a state is partial.

    Ranks that read counted items run in lockstep, so what the ``workers`` workers of one rank delivered holds for all
    ranks. ``items`` has one number for each of these workers, or, in the state of a single worker, its own number.
    If items are not counted, ``reader`` is the reader, ``turns_taken`` the number of its turns, and ``deliveries`` has
    ``(lane, end, cursor)`` for each lane of which it delivered something.
    """

    readers: int
    workers: int = 1
    items: tuple[int, ...] = ()
    reader: int | None = None
    turns_taken: int = 0
    deliveries: tuple[tuple[int, int, Cursor], ...] = ()

    @property
    def turns(self) -> int:
        """The number of turns of a single reader."""
        return self.items[0] if self.reader is None else self.turns_taken

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        if self.reader is None:
            return {"readers": self.readers, "workers": self.workers, "items": _write_cursor(self.items)}
        deliveries = [[lane, end, _write_cursor(cursor)] for lane, end, cursor in self.deliveries]
        return {"readers": self.readers, "reader": self.reader, "turns": self.turns_taken, "shares": deliveries}


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A checkpoint. ``lanes`` is None until the epoch begins, when it is cut into lanes."""

    epoch: int = 0
    lanes: int | None = None
    mode: Literal["file", "example"] = "example"
    turn: int = 0
    """How many turns at lanes were taken, those at lanes that had run out included."""
    item_rows: int = 1
    """The rows of an item, by ``batch``. A lane's ordinals count these items."""
    positions: LanePositions = LanePositions()
    reader_progress: ReaderProgress | None = None
    appended: AppendedFiles = ()
    edits: Edits = 0
    """How many edits of the pipeline, its last ones, came after the epoch was cut into lanes."""
    earlier: tuple["State", ...] = ()
    """This reader's states at the end of the last epochs, oldest first: other ranks may still be in those epochs."""
    later: tuple["State", ...] = ()
    """The complete states of the next epochs, where some ranks were already there when the states were merged."""
    digest: RowDigest | None = field(default=None, compare=False)
    """The digest of what was delivered of this epoch, if the run keeps one. Not needed to resume."""
    history: History = field(default=(), compare=False)
    """The sessions of this run so far; empty if they are not known. Traces need them, and merging does."""

    def assigned_to(self, readers: int) -> LaneAssignment:
        """The turns of readers that start here."""
        return LaneAssignment(lanes=len(self.positions), turn=self.turn, readers=readers)

    def counts_items(self, readers: int) -> bool:
        """True if this number of readers must count a lane's items, because it is or was shared. Else cursors do."""
        return self.assigned_to(readers).stride > 1 or not self.positions.in_step

    def following(self) -> "State":
        """Where the next epoch starts."""
        return self.start_of(self.epoch + 1)

    def start_of(self, epoch: int) -> "State":
        """Where another epoch starts: at its beginning, or where some ranks were already."""
        for number, state in enumerate(self.later, start=1):
            if state.epoch == epoch:
                return replace(state, later=self.later[number:], history=self.history)
        return State(epoch=epoch, history=self.history)

    def to_dict(self, fingerprint: Mapping[str, Any], of_fingerprint: bytes | None = None) -> dict[str, Any]:
        """Plain values, which survive JSON and ``torch.load(weights_only=True)``, with a checksum.

        ``of_fingerprint`` is the fingerprint's digest, if it is known already.
        """
        values: dict[str, Any] = {"version": VERSION, **self._write()}
        for name, states in (("earlier", self.earlier), ("later", self.later)):
            if states:
                values[name] = [state._write() for state in states]
        # These are always there, because some checkpoints restore only the keys that a state has before it is loaded.
        values["history"] = [record.write() for record in self.history]
        values["digest"] = values.pop("digest", None)
        own = checksum(values, fingerprint_digest(fingerprint) if of_fingerprint is None else of_fingerprint)
        values["fingerprint"] = {
            "data": dict(fingerprint["data"]),
            "pipeline": [dict(stage) for stage in fingerprint["pipeline"]],
        }
        values["checksum"] = own
        return values

    def _write(self) -> dict[str, Any]:
        """The values of this epoch alone."""
        values = {}
        for name, key, _, write, is_optional in FIELDS:
            value = getattr(self, name)
            if value or not is_optional:
                values[key] = value if write is None or value is None else write(value)
        return values

    @classmethod
    def from_dict(cls, values: Any) -> Self:
        """Read a state back. Raises ``CheckpointMismatchError`` if it is damaged or newer."""
        values = checked_state(values)
        try:
            _check_fingerprint(values["fingerprint"])
            earlier, later = (_list(values.get(key, ()), "epochs", MOST_APART) for key in ("earlier", "later"))
            state = replace(
                cls._read(values),
                earlier=tuple(map(cls._read, earlier)),
                later=tuple(map(cls._read, later)),
                history=read_history(values.get("history", ())),
            )
            check_neighbours(state)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
            raise CheckpointMismatchError(
                f"The state is damaged ({type(error).__name__}: {error}). Load an earlier checkpoint."
            ) from error
        return state

    @classmethod
    def _read(cls, values: Any) -> Self:
        """The values of one epoch."""
        fields = {}
        for name, key, read, _, is_optional in FIELDS:
            if not is_optional or values.get(key) is not None:
                fields[name] = read(values[key])
        state = cls(**fields)
        check_consistent(state)
        return state


def _check_fingerprint(value: Any) -> None:
    """Raise unless it has the parts that every fingerprint has. What they say is compared by the pipeline."""
    parts = (value["data"], value["pipeline"]) if isinstance(value, Mapping) else (None, None)
    if not isinstance(parts[0], Mapping) or not isinstance(parts[1], list | tuple):
        raise ValueError(f"no fingerprint of its data and pipeline, got {shortened(value)}")


def _write_cursor(cursor: Cursor) -> int | list[int]:
    return cursor[0] if len(cursor) == 1 else list(cursor)


def _write_positions(positions: LanePositions) -> list[Any]:
    runs = []
    for lanes, (at, done) in positions.runs:
        cursor = _write_cursor(at)
        runs.append([lanes, {"at": cursor, "done": list(done)} if done else cursor])
    return runs


def _write_appended(appended: AppendedFiles) -> list[Any]:
    return [[list(files) for files in group] for group in appended]


def _read_positions(value: Any) -> LanePositions:
    return LanePositions.pack((_integer(lanes, least=1), _read_position(position)) for lanes, position in value)


def _read_cursor(value: Any) -> Cursor:
    if not isinstance(value, list | tuple):
        return (_integer(value),)
    if not value:
        raise ValueError("expected numbers, got none")
    return tuple(_integer(number) for number in value)


def _read_position(value: Any) -> LanePosition:
    if isinstance(value, Mapping):
        delivered_ahead = tuple(_integer(number) for number in value["done"])
        if list(delivered_ahead) != sorted(set(delivered_ahead)):
            raise ValueError(f"expected rising numbers, got {shortened(delivered_ahead)}")
        return LanePosition(_read_cursor(value["at"]), delivered_ahead)
    return LanePosition(_read_cursor(value))


def _read_reader_progress(value: Any) -> ReaderProgress | None:
    if value is None:
        return None
    readers = _integer(value["readers"], least=1, most=MOST_RANKS)
    if "items" in value:
        workers = _integer(value["workers"], least=1, most=readers)
        return ReaderProgress(readers=readers, workers=workers, items=_read_cursor(value["items"]))
    deliveries = tuple((_integer(lane), _integer(end, least=1), _read_cursor(at)) for lane, end, at in value["shares"])
    return ReaderProgress(
        readers=readers,
        reader=_integer(value["reader"], most=readers - 1),
        turns_taken=_integer(value["turns"]),
        deliveries=deliveries,
    )


def _read_appended(value: Any) -> AppendedFiles:
    return tuple(_read_file_ranges(group) for group in _list(value, "lists of files", MOST_APPENDED))


def _read_file_ranges(value: Any) -> tuple[tuple[int, int], ...]:
    ranges = tuple((_integer(begin), _integer(end)) for begin, end in value)
    bounds = [bound for files in ranges for bound in files]
    if not ranges or bounds != sorted(bounds) or any(begin == end for begin, end in ranges):
        raise ValueError(f"expected rising ranges of files, got {shortened(value)}")
    return ranges


def _list(value: Any, noun: str, most: int) -> Sequence[Any]:
    if not isinstance(value, list | tuple) or len(value) > most:
        raise ValueError(f"expected at most {most} {noun}, got {shortened(value)}")
    return value


def _integer(value: Any, *, least: int = 0, most: int = 1 << 62) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"expected an integer from {least} to {most}, got {shortened(value)}")
    return value


def _read_lanes(value: Any) -> int | None:
    return None if value is None else _integer(value, least=1, most=MOST_RANKS)


def _read_mode(value: Any) -> str:
    if value not in MODES:
        raise ValueError(f"expected one of {', '.join(MODES)}, got {shortened(value)}")
    return str(value)


class Field(NamedTuple):
    """A field of a state: its key among the plain values, and what reads and writes it."""

    name: str
    key: str
    read: Callable[[Any], Any]
    """Raises ``ValueError``, ``TypeError`` or ``KeyError`` if no run can have written the value."""
    write: Callable[[Any], Any] | None = None
    is_optional: bool = False
    """True if it is left out where it has its default."""


FIELDS = (
    Field("epoch", "epoch", partial(_integer, most=2 * MOST_EPOCHS)),
    Field("lanes", "lanes", _read_lanes),
    Field("mode", "mode", _read_mode),
    Field("turn", "turn", _integer),
    Field("item_rows", "item_rows", partial(_integer, least=1, most=MOST_ITEM_ROWS)),
    Field("positions", "cursors", _read_positions, _write_positions),
    Field("reader_progress", "part", _read_reader_progress, ReaderProgress.to_dict),
    Field("appended", "grown", _read_appended, _write_appended, is_optional=True),
    Field("edits", "edits", read_edits, write_edits, is_optional=True),
    Field("digest", "digest", RowDigest.read, RowDigest.write, is_optional=True),
)
VERSION = 1
"""The version of the states that this release writes and reads."""
COVERED = {"version", "earlier", "later", "history", *(field.key for field in FIELDS)}
"""The keys that the checksum covers, besides the fingerprint."""
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def signed(values: Mapping[str, Any]) -> dict[str, Any]:
    """The state with the checksum of its present content."""
    covered = {key: _plain(values[key]) for key in COVERED if key in values}
    return {**values, "checksum": checksum(covered, fingerprint_digest(values.get("fingerprint")))}


def checksum(covered: Mapping[str, Any], of_fingerprint: bytes) -> str:
    """The checksum of plain values and the digest of a fingerprint."""
    return digest(_encode(covered).encode(), of_fingerprint).hex()


def fingerprint_digest(fingerprint: Any) -> bytes:
    """What a checksum needs of a fingerprint. A pipeline computes it once."""
    return digest(_encode(_plain(fingerprint)).encode())


def check_checksum(values: Mapping[str, Any]) -> None:
    """Raise if a state is not the one that was saved. One without a checksum, made by hand, passes."""
    try:
        present = signed(values)["checksum"]
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise CheckpointMismatchError.damaged(str(error)) from error
    if "checksum" in values and values["checksum"] != present:
        raise CheckpointMismatchError(
            "The state was changed or damaged after it was saved: its checksum does not fit its content. Load the "
            "state as state_dict() returned it, or an earlier checkpoint."
        )


def _plain(value: Any) -> Any:
    """The value as JSON has it. Numbers that JSON writers may write in two ways, such as 2 and 2.0, become equal."""
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, Mapping):
        return {_key(key): _plain(value[key]) for key in value}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [_plain(one) for one in value]
    if hasattr(value, "tolist"):  # scalars and arrays of NumPy and torch
        return _plain(value.tolist())
    raise ValueError(f"it has a value of type {type(value).__name__}")


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise ValueError(f"it has a key of type {type(key).__name__}")
    return key


def checked_state(values: Any) -> dict[str, Any]:
    """The values of a state, if they are as they were saved.

    Everything that reads the keys of a state, its fingerprint included, reads them from this.
    """
    if not isinstance(values, Mapping) or "version" not in values:
        raise CheckpointMismatchError(f"This is not a midepoch state{_instead(values)}")
    version = values["version"]
    if type(version) is not int or version != VERSION:
        is_newer = type(version) is int and version > VERSION
        raise CheckpointMismatchError(
            f"The state has version {shortened(version)}; this midepoch reads version {VERSION}. "
            + (
                "A newer release wrote it: install that release, or a later one."
                if is_newer
                else "There is no such version, so the state is damaged: load an earlier checkpoint."
            )
        )
    check_checksum(values)
    return dict(values)


def _instead(values: Any) -> str:
    """What something is that is not a state, and what to pass instead."""
    inside = [key for key, value in values.items() if _is_state(value)] if isinstance(values, Mapping) else []
    if inside:
        return (
            f", but a dict that holds one under the key {inside[0]!r}. Pass that value: "
            f"load_state_dict(checkpoint[{inside[0]!r}])."
        )
    remedy = "Pass what state_dict() returned."
    if isinstance(values, str | os.PathLike):
        remedy = "Load the file first: load_state_dict(torch.load(path, weights_only=True))."
    elif isinstance(values, list | tuple) and values and all(map(_is_state, values)):
        remedy = "These are states of several ranks: load_state_dict(midepoch.merge_states(states))."
    return f": expected a dict with the key 'version', got {shortened(values)}. {remedy}"


def _is_state(value: Any) -> bool:
    return isinstance(value, Mapping) and {"version", "fingerprint", "cursors"} <= value.keys()
