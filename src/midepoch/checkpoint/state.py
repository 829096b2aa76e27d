"""What a checkpoint holds: epoch, lanes, turn, where each lane stands. Plain values, no machine, no I/O."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, Literal, Self

from midepoch.checkpoint.lanes import Cursor, Deal, Share, Standing, join
from midepoch.errors import CheckpointMismatchError

VERSION = 1
Grown = tuple[tuple[tuple[int, int], ...], ...]
"""The files of which the parts of an epoch's order were made before others were added, as stretches of numbers."""
MOST = 1 << 20
"""More lanes or readers than any cluster has; a state that names more is damaged."""


@dataclass(frozen=True, slots=True)
class Standings:
    """Where all lanes stand, as runs of ``(how many lanes, where they stand)``."""

    runs: tuple[tuple[int, Standing], ...] = ()

    @classmethod
    def pack(cls, pairs: Iterable[tuple[int, Standing]]) -> Self:
        """Join neighbours that stand alike."""
        packed: list[tuple[int, Standing]] = []
        for count, standing in pairs:
            if packed and packed[-1][1] == standing:
                packed[-1] = (packed[-1][0] + count, standing)
            else:
                packed.append((count, standing))
        return cls(tuple(packed))

    def __len__(self) -> int:
        return sum(count for count, _ in self.runs)

    def __getitem__(self, lane: int) -> Standing:
        ends = list(accumulate(count for count, _ in self.runs))
        return self.runs[bisect_right(ends, lane)][1]

    def expand(self) -> list[Standing]:
        """One entry a lane."""
        return [standing for count, standing in self.runs for _ in range(count)]

    @property
    def in_step(self) -> bool:
        """Whether no lane has items delivered ahead of its cursor."""
        return not any(standing.done for _, standing in self.runs)

    def advanced(self, turn: int, turns: int, rows: int) -> "Standings":
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
            moved.append((end - begin, Standing((position + rows * steps, *rest))))
        return Standings.pack(moved)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
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
    shares: tuple[tuple[int, int, Cursor], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The part as plain values."""
        if self.reader is None:
            return {"readers": self.readers, "workers": self.workers, "items": _plain_cursor(self.items)}
        shares = [[lane, end, _plain_cursor(cursor)] for lane, end, cursor in self.shares]
        return {"readers": self.readers, "reader": self.reader, "turns": self.turns, "shares": shares}


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A checkpoint. ``lanes`` is None where the epoch has not begun: it is dealt when it does."""

    epoch: int = 0
    lanes: int | None = None
    mode: Literal["file", "example"] = "example"
    turn: int = 0
    item_rows: int = 1
    """How many rows make an item, by ``batch``: what a lane's ordinals count."""
    standings: Standings = Standings()
    part: Part | None = None
    grown: Grown = ()

    def to_dict(self, fingerprint: Mapping[str, Any]) -> dict[str, Any]:
        """The state as plain values."""
        return {
            "version": VERSION,
            "epoch": self.epoch,
            "lanes": self.lanes,
            "mode": self.mode,
            "turn": self.turn,
            "item_rows": self.item_rows,
            "cursors": [[count, _plain_standing(standing)] for count, standing in self.standings.runs],
            "part": None if self.part is None else self.part.to_dict(),
            "fingerprint": {
                "data": dict(fingerprint["data"]),
                "pipeline": [dict(stage) for stage in fingerprint["pipeline"]],
            },
        } | ({"grown": [[list(stretch) for stretch in part] for part in self.grown]} if self.grown else {})

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
                standings=Standings.pack(
                    (_whole(count, least=1), _read_standing(standing)) for count, standing in values["cursors"]
                ),
                part=None if values["part"] is None else _read_part(values["part"]),
                grown=tuple(_read_stretches(part) for part in values.get("grown", ())),
            )
            if len(state.standings) != (state.lanes or 0):
                raise ValueError(f"{len(state.standings)} cursors for {state.lanes} lanes")
            if state.part is not None and state.part.readers % state.part.workers:
                raise ValueError(f"{state.part.readers} readers in ranks of {state.part.workers} workers")
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise CheckpointMismatchError(
                f"The state is damaged ({type(error).__name__}: {error}). Load an earlier checkpoint."
            ) from error
        return state


def merge_states(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Join the states that the ranks saved at one step into a single one, from which any ranks can go on.

    A uniform pipeline's state (only 1:1 stages and ``batch``) is complete on every rank, and merging is
    just a check. Filtering and packing pipelines need the states of all ranks, in any order.
    """
    dicts = list(states)
    if not dicts:
        raise ValueError("merge_states got no states; pass one for each rank.")
    read = [State.from_dict(values) for values in dicts]
    for values, state in zip(dicts, read, strict=True):
        _check_same_leg(dicts[0], read[0], values, state)
    parts = [state.part for state in read]
    if all(part is None or part.reader is None for part in parts):
        if any(part != parts[0] for part in parts):
            raise CheckpointMismatchError(
                "The states were taken after different numbers of items. Save all ranks at the same step; for the "
                "workers of a StatefulDataLoader use from_stateful_dataloader."
            )
        return dict(dicts[0])
    return _joined(read[0], _all_parts(parts)).to_dict(dicts[0]["fingerprint"])


def _check_same_leg(first_dict: Mapping[str, Any], first: State, values: Mapping[str, Any], state: State) -> None:
    """Refuse to merge states of different data, epochs or starts."""
    then, now = replace(first, part=None), replace(state, part=None)
    if first_dict.get("fingerprint") != values.get("fingerprint"):
        raise CheckpointMismatchError("The states are of different data or pipelines and cannot be merged.")
    for name in ("epoch", "lanes", "mode", "turn", "item_rows", "standings", "grown"):
        if getattr(then, name) != getattr(now, name):
            raise CheckpointMismatchError(
                f"The states cannot be merged: {name} is {_short(getattr(then, name))} in the first and "
                f"{_short(getattr(now, name))} in another. Merge states that all ranks saved at the same step, in the "
                "same epoch."
            )


def _all_parts(parts: Sequence[Part | None]) -> list[Part]:
    """The parts in the order of their readers, once it is sure that none is missing."""
    known: dict[int | None, Part] = {}
    for part in parts:
        if part is not None and known.setdefault(part.reader, part) != part:
            raise CheckpointMismatchError(
                f"There are two different states of reader {part.reader}. Merge one state of each rank, all saved at "
                "the same step."
            )
    readers = next(part.readers for part in parts if part is not None)
    if any(part is None or part.readers != readers for part in parts):
        raise CheckpointMismatchError("The states are of runs with different numbers of readers.")
    missing = [reader for reader in range(readers) if reader not in known]
    if missing:
        raise CheckpointMismatchError(
            f"The state of reader {missing[0]} of {readers} is missing ({len(missing)} missing in all). "
            "merge_states needs one state from every rank."
        )
    return [known[reader] for reader in range(readers)]


def _joined(start: State, parts: Sequence[Part]) -> State:
    """The complete state after every reader delivered its part."""
    assert start.lanes is not None
    deal = Deal(lanes=start.lanes, turn=start.turn, readers=len(parts))
    shares: list[list[Share]] = [[] for _ in range(start.lanes)]
    for reader, part in enumerate(parts):
        delivered = {lane: (end, cursor) for lane, end, cursor in part.shares}
        for place, lane in enumerate(deal.rotation(reader)):
            shares[lane].append(Share(deal.phase(reader, place), *delivered.get(lane, (0, ()))))
    return joined_at(start, deal, shares, [part.turns for part in parts])


def joined_at(start: State, deal: Deal, shares: Sequence[Sequence[Share]], turns: Sequence[int]) -> State:
    """The complete state, given each lane's shares and how many turns each reader took."""
    standings = Standings.pack(
        (1, join(standing, deal.stride, shares[lane])) for lane, standing in enumerate(start.standings.expand())
    )
    turn = min(deal.turn + reader + deal.readers * taken for reader, taken in enumerate(turns))
    return replace(start, turn=turn, standings=standings, part=None)


def _plain_cursor(cursor: Cursor) -> int | list[int]:
    return cursor[0] if len(cursor) == 1 else list(cursor)


def _plain_standing(standing: Standing) -> Any:
    cursor = _plain_cursor(standing.cursor)
    return {"at": cursor, "done": list(standing.done)} if standing.done else cursor


def _read_cursor(value: Any) -> Cursor:
    return tuple(_whole(number) for number in value) if isinstance(value, list | tuple) else (_whole(value),)


def _read_standing(value: Any) -> Standing:
    if isinstance(value, Mapping):
        done = tuple(_whole(number) for number in value["done"])
        if list(done) != sorted(set(done)):
            raise ValueError(f"expected rising numbers, got {_short(done)}")
        return Standing(_read_cursor(value["at"]), done)
    return Standing(_read_cursor(value))


def _read_part(value: Any) -> Part:
    readers = _whole(value["readers"], least=1, most=MOST)
    if "items" in value:
        return Part(readers=readers, workers=_whole(value["workers"], least=1), items=_read_cursor(value["items"]))
    shares = tuple((_whole(lane), _whole(end, least=1), _read_cursor(at)) for lane, end, at in value["shares"])
    return Part(readers=readers, reader=_whole(value["reader"]), turns=_whole(value["turns"]), shares=shares)


def _read_stretches(value: Any) -> tuple[tuple[int, int], ...]:
    stretches = tuple((_whole(begin), _whole(end)) for begin, end in value)
    bounds = [bound for stretch in stretches for bound in stretch]
    if not stretches or bounds != sorted(bounds):
        raise ValueError(f"expected rising stretches of files, got {_short(value)}")
    return stretches


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
