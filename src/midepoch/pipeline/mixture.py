"""A source that draws from several pipelines in turn, each at its own pace and from its own position.

Lane ``l`` of a mixture draws from lane ``l`` of every part. Its cursor holds, for each part, how many items were drawn
since the schedule began, how often the part has come to its end, and the part's own cursor. The schedule is a pure
function of the weights, the seed, the lane and those counts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple, Self

import pyarrow as pa

from midepoch.checkpoint.lanes import Cursor
from midepoch.checkpoint.state import AppendedFiles
from midepoch.errors import CheckpointMismatchError
from midepoch.pipeline.draws import Drawn, Draws, Stop, Supply
from midepoch.pipeline.pipeline import Lanes, Pipeline
from midepoch.pipeline.schedule import Schedule, whole_weights
from midepoch.sources.source import ALL_ROWS, AdoptedCheckpoint, ItemSpec, Mode, MoveCursor, OpenSource, RowStride
from midepoch.stages.flow import Flow

STOPS = ("first", "all", "never")
PASSES_AT_HAND = 4


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """Several pipelines, drawn from in the proportion of their weights."""

    parts: tuple[Pipeline, ...]
    names: tuple[str, ...]
    weights: tuple[float, ...]
    named: bool
    """Whether the user has given the names; else they are made of what the parts are."""
    seed: int = 0
    stop: Stop = "first"
    uniform = False
    has_rows = False

    @property
    def label(self) -> str:
        """A short name for people."""
        return f"mix-of-{len(self.parts)}"

    def __str__(self) -> str:
        told = ", ".join(f"{name} ({weight:g})" for name, weight in zip(self.names, self.weights, strict=True))
        return f"a mixture of {told}"

    @cached_property
    def whole_weights(self) -> tuple[int, ...]:
        """The weights as the schedule takes them."""
        return whole_weights(self.weights)

    @property
    def survives_fork(self) -> bool:
        """Whether all parts do."""
        return all(part.source.survives_fork for part in self.parts)

    @property
    def item_spec(self) -> ItemSpec:
        """That of all parts, which is the same."""
        return self.parts[0].item_spec

    @cached_property
    def schema(self) -> pa.Schema | None:
        """That of the rows of all parts, if they are rows of files as they are, and alike."""
        schemas = [part.run_schema for part in self.parts]
        alike = all(one is not None and one.equals(schemas[0]) for one in schemas)
        return schemas[0] if alike else None

    @property
    def begin(self) -> Cursor:
        """Nothing drawn of any part."""
        return join([Drawn(0, 0, part.begin) for part in self.parts])

    def split(self, cursor: Cursor) -> list[Drawn]:
        """Where each part stands."""
        return _segments(cursor, [len(part.begin) for part in self.parts])

    @property
    def fingerprint(self) -> dict[str, Any]:
        """The data of all parts."""
        return {"parts": [part.fingerprint["data"] for part in self.parts]}

    def describe(self) -> list[dict[str, Any]]:
        """The parts, and how they are drawn from."""
        return [
            {
                "op": "mix",
                "names": list(self.names),
                "weights": list(self.weights),
                "seed": self.seed,
                "stop": self.stop,
                "widths": [len(part.begin) for part in self.parts],
                "parts": [part.describe() for part in self.parts],
            }
        ]

    def cut(self, *, epoch: int, lanes: int, mode: Mode, appended: AppendedFiles = ()) -> "MixtureLanes":
        """The lanes of all parts."""
        if appended:
            raise CheckpointMismatchError(
                "The state is damaged: it says that files were added to a mixture. Load an earlier checkpoint."
            )
        return MixtureLanes(self, epoch=epoch, lanes=lanes, mode=mode)

    def open(self, lanes: int) -> "PartsReading":
        """What each part needs."""
        return PartsReading([part.source.open(lanes * len(self.parts)) for part in self.parts])

    def locate(self, key: int) -> tuple[str, int]:
        """Unknown: the parts' keys are mixed."""
        raise LookupError(key)

    def adopt(self, then: Mapping[str, Any]) -> AdoptedCheckpoint:
        """A mixture with other weights or other parts goes on from where each of its parts stood."""
        told, *stages = then["pipeline"] or [{}]
        if told.get("op") != "mix" or "parts" not in then["data"]:
            raise CheckpointMismatchError("The checkpoint is not of a mixture. Load it into what it was taken of.")
        if told["stop"] != self.stop:
            raise CheckpointMismatchError(
                f"The mixture had stop={told['stop']!r} and has stop={self.stop!r}: its end would be another. "
                "Build it as it was, or start anew without the state."
            )
        was = Then.read(told, then["data"])
        sources = [was.names.index(name) if name in was.names else None for name in self.names]
        self._check_known(was, sources)
        parts = [self._part_adopted(number, was, source) for number, source in enumerate(sources)]
        changes = self._changes(was, sources)
        moves = [None if part is None else part.move for part in parts]
        moved = None
        if changes or any(moves):
            moved = partial(self._moved, was, sources, moves, bool(changes))
        for name, part in zip(self.names, parts, strict=True):
            changes += [f"in {name}, {change}" for change in (part.changes if part is not None else ())]
        return AdoptedCheckpoint(moved, [*self.describe(), *stages], tuple(changes))

    def _part_adopted(self, number: int, was: "Then", source: int | None) -> AdoptedCheckpoint | None:
        """How the checkpoint's part is gone on from as this part, which must be the same; None for a new one."""
        if source is None:
            return None
        try:
            return self.parts[number].adoption({"data": was.data[source], "pipeline": was.pipelines[source]})
        except CheckpointMismatchError as error:
            raise CheckpointMismatchError(
                f"The part {self.names[number]!r} of the mixture is not the one of the checkpoint. {error} "
                "To put another part in its place, give it another name."
            ) from error

    def _check_known(self, was: "Then", sources: Sequence[int | None]) -> None:
        """Raise where nobody can say whether a part is new or an old one that was changed."""
        new = [name for name, source in zip(self.names, sources, strict=True) if source is None]
        gone = [name for name in was.names if name not in self.names]
        if len(new) == len(self.names) or (new and gone and not self.named):
            raise CheckpointMismatchError(
                f"The mixture had the parts {', '.join(was.names)} and has {', '.join(self.names)}: whether "
                f"{new[0]} is new, or one of those that was changed, nobody can tell. Build the parts as they were, or "
                "name them by passing a dict to mix, then and now."
            )

    def _moved(
        self, was: "Then", sources: Sequence[int | None], moves: Sequence[MoveCursor | None], anew: bool, cursor: Cursor
    ) -> Cursor:
        """Each part where it stood, or at its beginning; under a schedule that begins anew if it is another."""
        if len(cursor) != sum(was.widths) + 2 * len(was.widths):
            raise CheckpointMismatchError(
                f"The state is damaged: a cursor has {len(cursor)} numbers, which are not those of the parts "
                f"{', '.join(was.names)}. Load an earlier checkpoint."
            )
        stood = _segments(cursor, was.widths)
        drawn = []
        for part, source, move in zip(self.parts, sources, moves, strict=True):
            if source is None:
                drawn.append(Drawn(0, 0, part.begin))
            else:
                items, ends, at = stood[source]
                drawn.append(Drawn(0 if anew else items, ends, at if move is None else move(at)))
        return join(drawn)

    def _changes(self, was: "Then", sources: Sequence[int | None]) -> list[str]:
        """What of the schedule is different from the checkpoint, in words."""
        told = []
        for name, weight, source in zip(self.names, self.weights, sources, strict=True):
            if source is None:
                told.append(f"{name} is new and begins at its beginning, with weight {weight:g}")
            elif was.weights[source] != weight:
                told.append(f"{name} has weight {weight:g} instead of {was.weights[source]:g}")
        told += [f"{name} was taken out" for name in was.names if name not in self.names]
        if was.seed != self.seed:
            told.append(f"its seed is {self.seed} instead of {was.seed}")
        if not told and list(self.names) != was.names:
            told.append("its parts are in another order")
        return told


class Then(NamedTuple):
    """What a checkpoint says of its mixture."""

    names: list[str]
    weights: list[float]
    seed: int
    widths: list[int]
    pipelines: list[Any]
    data: list[Any]

    @classmethod
    def read(cls, told: Mapping[str, Any], data: Mapping[str, Any]) -> Self:
        """Read it from a fingerprint, whose lists must have one entry for each part."""
        was = cls(told["names"], told["weights"], told["seed"], told["widths"], told["parts"], data["parts"])
        if len({len(one) for one in (was.names, was.weights, was.widths, was.pipelines, was.data)}) != 1:
            raise ValueError("its parts are not counted alike everywhere")
        if any(type(width) is not int or width < 1 for width in was.widths):
            raise ValueError(f"the widths of cursors are {was.widths}")
        return was


class PartsReading:
    """What the parts of a mixture hold open."""

    def __init__(self, parts: Sequence[OpenSource]) -> None:
        self.parts = parts

    @property
    def decodes(self) -> bool:
        """Whether any part does."""
        return any(part.decodes for part in self.parts)

    def close(self) -> None:
        """Close all of them."""
        for part in self.parts:
            part.close()


class MixtureLanes:
    """The lanes of one epoch of a mixture."""

    def __init__(self, mixture: Mixture, *, epoch: int, lanes: int, mode: Mode) -> None:
        self._mixture, self._epoch, self._count, self._mode = mixture, epoch, lanes, mode
        # An epoch's order is shared by all lanes; while some are a pass ahead of others, those of both are needed.
        self._part_lanes = lru_cache(maxsize=PASSES_AT_HAND * len(mixture.parts))(self._cut)

    def _cut(self, number: int, epoch: int) -> Lanes:
        return Lanes(self._mixture.parts[number], epoch=epoch, lanes=self._count, mode=self._mode)

    def _lanes(self, number: int, ends: int) -> Lanes:
        """A part's lanes. One that begins again does so in its next epoch, with another shuffle."""
        return self._part_lanes(number, self._epoch + (ends if self._mixture.stop == "never" else 0))

    def size(self, lane: int) -> int:
        """The rows of all parts."""
        return sum(self._lanes(number, 0).size(lane) for number in range(len(self._mixture.parts)))

    def reaches(self, lane: int, cursor: Cursor, margin: int) -> bool:
        """Whether every part can have come to where it stands, and the schedule to what it has drawn."""
        drawn = self._mixture.split(cursor)
        schedule = self._schedule(lane, [one.ends for one in drawn])
        return (schedule is None or schedule.comes_to([one.items for one in drawn])) and all(
            self._lanes(number, ends).source.reaches(lane, at, self._mixture.parts[number].item_rows)
            for number, (_, ends, at) in enumerate(drawn)
        )

    def flow(self, reading: PartsReading, lane: int, cursor: Cursor, stride: RowStride = ALL_ROWS) -> Flow:
        """The items of a lane: in runs if the rows of all parts have the same columns and nobody has touched them."""
        assert stride == ALL_ROWS, "a mixture is not uniform: nobody may skip in it"
        mixture = self._mixture
        supplies = [
            Supply(name=name, begin=part.begin, open=partial(self._open, reading, lane, number))
            for number, (name, part) in enumerate(zip(mixture.names, mixture.parts, strict=True))
        ]
        draws = Draws(supplies, mixture.split(cursor), stop=mixture.stop, schedule=partial(self._schedule, lane))
        form, batched = mixture.item_spec
        if mixture.schema is not None:
            return Flow(row_runs=draws.runs(), form=form)
        return Flow(single_items=draws.each(), form=form, batched=batched)

    def _open(self, reading: PartsReading, lane: int, number: int, ends: int, at: Cursor) -> Flow:
        return self._lanes(number, ends).flow(reading.parts[number], lane, at)

    def _schedule(self, lane: int, ends: Sequence[int]) -> Schedule | None:
        """The order of draws among the parts that have not ended; None if all have."""
        mixture = self._mixture
        left = [
            0 if mixture.stop == "all" and ended else weight
            for weight, ended in zip(mixture.whole_weights, ends, strict=True)
        ]
        return Schedule(left, mixture.seed, self._epoch, lane) if any(left) else None


def join(drawn: Sequence[Drawn]) -> Cursor:
    """Where the parts stand, as one cursor."""
    return tuple(number for items, ends, cursor in drawn for number in (items, ends, *cursor))


def _segments(cursor: Cursor, widths: Sequence[int]) -> list[Drawn]:
    """Where each part stands, whose own cursors have these widths."""
    drawn, at = [], 0
    for width in widths:
        drawn.append(Drawn(cursor[at], cursor[at + 1], cursor[at + 2 : at + 2 + width]))
        at += 2 + width
    return drawn
