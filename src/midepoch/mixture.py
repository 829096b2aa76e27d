"""A source that draws from several pipelines in turn, each at its own pace and from its own position.

Lane ``l`` of a mixture draws from lane ``l`` of every part. Its cursor holds, for each part, how many items were drawn
since the schedule began, how often the part has come to its end, and the part's own cursor. The schedule is a pure
function of the weights, the seed, the lane and those counts.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Literal, NamedTuple

from midepoch.deal import Cursor
from midepoch.errors import CheckpointMismatchError
from midepoch.origin import ALL, Adopted, Every, Mode, Move, Reading
from midepoch.pipeline import Lanes, Pipeline
from midepoch.schedule import Schedule, whole_weights
from midepoch.stages.flow import Flow, Step

log = logging.getLogger("midepoch")

Stop = Literal["first", "all", "never"]
STOPS = ("first", "all", "never")
WORD = 1 << 63


class Drawn(NamedTuple):
    """Where a lane stands in one part."""

    items: int
    """How many items the schedule has drawn."""
    ends: int
    """How often the part came to its end."""
    cursor: Cursor


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

    def cut(self, *, epoch: int, lanes: int, mode: Mode) -> "MixtureLanes":
        """The lanes of all parts."""
        return MixtureLanes(self, epoch=epoch, lanes=lanes, mode=mode)

    def open(self, lanes: int) -> "PartsReading":
        """What each part needs."""
        return PartsReading([part.origin.open(lanes * len(self.parts)) for part in self.parts])

    def locate(self, key: int) -> tuple[str, int]:
        """Unknown: the parts' keys are mixed."""
        raise LookupError(key)

    def adopt(self, then: Mapping[str, Any]) -> Adopted:
        """A mixture with other weights or other parts goes on from where each of its parts stood."""
        told, *stages = then["pipeline"]
        if told.get("op") != "mix" or "parts" not in then["data"]:
            raise CheckpointMismatchError("The checkpoint is not of a mixture. Load it into what it was taken of.")
        if told["stop"] != self.stop:
            raise CheckpointMismatchError(
                f"The mixture had stop={told['stop']!r} and has stop={self.stop!r}: its end would be another. "
                "Keep it as it was until the next epoch."
            )
        was = Then(told["names"], told["weights"], told["widths"], told["parts"], then["data"]["parts"])
        sources = [was.names.index(name) if name in was.names else None for name in self.names]
        self._check_known(was, sources)
        moves = [self._part_move(number, was, source) for number, source in enumerate(sources)]
        drawing = {"names": list(self.names), "weights": list(self.weights), "seed": self.seed}
        if not any(moves) and all(told[key] == value for key, value in drawing.items()):
            return Adopted(None, [*self.describe(), *stages])
        log.warning("The mixture goes on changed: %s.", self._changes(was, sources))
        return Adopted(partial(self._moved, was, sources, moves), [*self.describe(), *stages])

    def _part_move(self, number: int, was: "Then", source: int | None) -> Move | None:
        """How a cursor of the checkpoint's part becomes one of this part's, which must be the same."""
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
        self, was: "Then", sources: Sequence[int | None], moves: Sequence[Move | None], cursor: Cursor
    ) -> Cursor:
        """Each part where it stood, or at its beginning, under a schedule that begins anew."""
        stood = _segments(cursor, was.widths)
        drawn = []
        for part, source, move in zip(self.parts, sources, moves, strict=True):
            if source is None:
                drawn.append(Drawn(0, 0, part.begin))
            else:
                _, ends, at = stood[source]
                drawn.append(Drawn(0, ends, at if move is None else move(at)))
        return join(drawn)

    def _changes(self, was: "Then", sources: Sequence[int | None]) -> str:
        """What is different from the checkpoint, in words."""
        told = []
        for name, weight, source in zip(self.names, self.weights, sources, strict=True):
            if source is None:
                told.append(f"{name} is new and begins at its beginning, with weight {weight:g}")
            elif was.weights[source] != weight:
                told.append(f"{name} has weight {weight:g} instead of {was.weights[source]:g}")
        told += [f"{name} was taken out" for name in was.names if name not in self.names]
        return "; ".join(told) or "its parts are drawn in another order"


class Then(NamedTuple):
    """What a checkpoint says of its mixture."""

    names: list[str]
    weights: list[float]
    widths: list[int]
    pipelines: list[Any]
    data: list[Any]


class PartsReading:
    """What the parts of a mixture hold open."""

    def __init__(self, parts: Sequence[Reading]) -> None:
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

    def _lanes(self, number: int, ends: int) -> Lanes:
        """A part's lanes. One that begins again does so in its next epoch, with another shuffle."""
        epoch = self._epoch + (ends if self._mixture.stop == "never" else 0)
        return Lanes(self._mixture.parts[number], epoch=epoch, lanes=self._count, mode=self._mode)

    def size(self, lane: int) -> int:
        """The rows of all parts."""
        return sum(self._lanes(number, 0).size(lane) for number in range(len(self._mixture.parts)))

    def reaches(self, lane: int, cursor: Cursor, margin: int) -> bool:
        """Whether every part can have come to where it stands."""
        return all(
            self._lanes(number, ends).origin.reaches(lane, at, self._mixture.parts[number].item_rows)
            for number, (_, ends, at) in enumerate(self._mixture.split(cursor))
        )

    def flow(self, reading: PartsReading, lane: int, cursor: Cursor, every: Every = ALL) -> Flow:
        """The items of a lane, drawn one by one."""
        assert every == ALL, "a mixture is not uniform: nobody may skip in it"
        drawn = self._mixture.split(cursor)
        flows = {
            number: self._open(reading, lane, number, ends, at)
            for number, (_, ends, at) in enumerate(drawn)
            if self._mixture.weights[number]
        }
        looks = {(flow.form, flow.batched) for flow in flows.values()}
        if len(looks) > 1:
            raise ValueError(
                "The parts of a mixture give items of different looks: "
                + ", ".join(f"{form}{' batches' if batched else ''}" for form, batched in sorted(looks))
                + ". Use the same with_format, and batch all of them or none."
            )
        form, batched = looks.pop()
        steps = self._steps(reading, lane, drawn, {number: flow.steps() for number, flow in flows.items()})
        return Flow(single=steps, form=form, batched=batched)

    def _open(self, reading: PartsReading, lane: int, number: int, ends: int, at: Cursor) -> Flow:
        return self._lanes(number, ends).flow(reading.parts[number], lane, at)

    def _schedule(self, lane: int, ends: Sequence[int]) -> Schedule | None:
        """The order of draws among the parts that have not ended; None if all have."""
        mixture = self._mixture
        whole = whole_weights(mixture.weights)
        left = [0 if mixture.stop == "all" and ended else weight for weight, ended in zip(whole, ends, strict=True)]
        return Schedule(left, mixture.seed, self._epoch, lane) if any(left) else None

    def _steps(
        self, reading: PartsReading, lane: int, drawn: list[Drawn], steps: dict[int, Iterator[Step]]
    ) -> Iterator[Step]:
        mixture = self._mixture
        items, ends = [one.items for one in drawn], [one.ends for one in drawn]
        segments: list[Cursor] = [(one.items, one.ends, *one.cursor) for one in drawn]
        untouched = {number for number, one in enumerate(drawn) if one.cursor == mixture.parts[number].begin}
        schedule = self._schedule(lane, ends)
        while schedule is not None:
            number = schedule.draw(items)
            step = next(steps[number], None)
            if step is not None:
                item, end, key = step
                items[number] += 1
                segments[number] = (items[number], ends[number], *end)
                untouched.discard(number)
                yield item, tuple(chain.from_iterable(segments)), _mixed(key, number, ends[number])
                continue
            if mixture.stop == "first":
                return
            if mixture.stop == "never" and number in untouched:
                raise ValueError(
                    f"The part {mixture.names[number]!r} of the mixture has nothing to give in lane {lane} of "
                    f"{self._count}, so it cannot begin again. It may have fewer rows than there are lanes, or a "
                    "filter that keeps none."
                )
            ends[number] += 1
            if mixture.stop == "all":
                items = [0] * len(items)
                segments = [(0, ended, *segment[2:]) for ended, segment in zip(ends, segments, strict=True)]
                schedule = self._schedule(lane, ends)
            else:
                begin = mixture.parts[number].begin
                segments[number] = (items[number], ends[number], *begin)
                steps[number] = self._open(reading, lane, number, ends[number], begin).steps()
                untouched.add(number)


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


def _mixed(key: int, number: int, ends: int) -> int:
    """A key that no item of another part, or of another pass, has but by a rare accident."""
    return (key ^ (number + 1) * 0x9E3779B97F4A7C15 ^ ends * 0xBF58476D1CE4E5B9) % WORD
