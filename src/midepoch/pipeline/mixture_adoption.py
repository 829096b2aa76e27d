"""Accepting a checkpoint of a mixture, also one whose weights or parts are others now."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Self

from midepoch.checkpoint.lanes import Cursor
from midepoch.checkpoint.state import Edits, edits_of_part, join_edits
from midepoch.errors import CheckpointMismatchError
from midepoch.pipeline.adoption import adoption
from midepoch.pipeline.draws import PartPosition, Stop, join_positions, split_cursor
from midepoch.pipeline.pipeline import Pipeline
from midepoch.pipeline.weight_schedule import weight_in_words
from midepoch.sources.source import AdoptedCheckpoint, MoveCursor


@dataclass(frozen=True, kw_only=True)
class MixtureAdoption:
    """What the mixture is now. A checkpoint of one that differs is accepted, or refused."""

    parts: tuple[Pipeline, ...]
    names: tuple[str, ...]
    named: bool
    """True if the user named the parts."""
    weights: Sequence[Any]
    """The weight of each part as a checkpoint holds it."""
    seed: int
    stop: Stop
    in_turn: bool
    description: Sequence[dict[str, Any]]
    """The mixture as a checkpoint holds it."""

    def adopt(self, then: Mapping[str, Any]) -> AdoptedCheckpoint:
        """Accept a checkpoint of a mixture, also one with other weights or parts: each part keeps its own position."""
        description, *stages = then["pipeline"] or [{}]
        if description.get("op") != "mix" or "parts" not in then["data"]:
            raise CheckpointMismatchError(
                "The checkpoint is not of a mixture. Load it into the dataset that it was taken of."
            )
        if bool(description.get("in_turn")) != self.in_turn:
            words = "mix", "concat"
            raise CheckpointMismatchError(
                f"The datasets were joined by {words[not self.in_turn]}, and are joined by {words[self.in_turn]} now. "
                "Build them as they were, or start over without the state."
            )
        if description["stop"] != self.stop:
            raise CheckpointMismatchError(
                f"The mixture had stop={description['stop']!r} and has stop={self.stop!r}, so it would end elsewhere. "
                "Build it as it was, or start over without the state."
            )
        saved = SavedMixture.from_fingerprint(description, then["data"])
        saved_numbers = [saved.names.index(name) if name in saved.names else None for name in self.names]
        self._check_known(saved, saved_numbers)
        parts = [self._adopt_part(part, saved, number) for part, number in enumerate(saved_numbers)]
        changes = self._changes(saved, saved_numbers)
        moves = [None if part is None else part.move for part in parts]
        moved = None
        if changes or any(moves):
            moved = partial(self._moved, saved, saved_numbers, moves, bool(changes))
        for name, part in zip(self.names, parts, strict=True):
            changes += [f"in {name}, {change}" for change in (part.changes if part is not None else ())]
        edits = join_edits([0 if part is None else part.edits for part in parts])
        move_edits = partial(_moved_edits, saved_numbers, parts)
        return AdoptedCheckpoint(moved, [*self.description, *stages], tuple(changes), edits, move_edits)

    def _adopt_part(self, part: int, saved: "SavedMixture", saved_number: int | None) -> AdoptedCheckpoint | None:
        """Accept the checkpoint's part of the same name, or raise if it has changed; None for a new part."""
        if saved_number is None:
            return None
        then = {"data": saved.data[saved_number], "pipeline": saved.pipelines[saved_number]}
        try:
            return adoption(self.parts[part], then)
        except CheckpointMismatchError as error:
            raise CheckpointMismatchError(
                f"The part {self.names[part]!r} of the mixture is not the one of the checkpoint. {error} "
                "To replace it by another part, give that another name."
            ) from error

    def _check_known(self, saved: "SavedMixture", saved_numbers: Sequence[int | None]) -> None:
        """Raise if an unknown part may be new or a changed old one."""
        new = [name for name, number in zip(self.names, saved_numbers, strict=True) if number is None]
        gone = [name for name in saved.names if name not in self.names]
        if len(new) == len(self.names) or (new and gone and not self.named):
            raise CheckpointMismatchError(
                f"The mixture had the parts {', '.join(saved.names)} and has {', '.join(self.names)}. Whether "
                f"{new[0]} is new or a changed old part is unknown. Build the parts as they were, or name them by "
                "passing a dict to mix, both before and after the change."
            )

    def _moved(
        self,
        saved: "SavedMixture",
        saved_numbers: Sequence[int | None],
        moves: Sequence[MoveCursor | None],
        new_schedule: bool,
        cursor: Cursor,
    ) -> Cursor:
        """A cursor of the checkpoint as one of this mixture. Known parts keep their position, new ones begin.

        A new schedule begins too: it has drawn nothing yet.
        """
        if len(cursor) != sum(saved.widths) + 2 * len(saved.widths):
            raise CheckpointMismatchError(
                f"The state is damaged: a cursor has {len(cursor)} numbers, which do not fit the parts "
                f"{', '.join(saved.names)}. Load an earlier checkpoint."
            )
        saved_positions = split_cursor(cursor, saved.widths)
        positions = []
        for part, number, move in zip(self.parts, saved_numbers, moves, strict=True):
            if number is None:
                positions.append(PartPosition(0, 0, part.begin))
                continue
            drawn, times_ended, part_cursor = saved_positions[number]
            part_cursor = part_cursor if move is None else move(part_cursor)
            positions.append(PartPosition(0 if new_schedule else drawn, times_ended, part_cursor))
        return join_positions(positions)

    def _changes(self, saved: "SavedMixture", saved_numbers: Sequence[int | None]) -> list[str]:
        """How the schedule differs from the checkpoint's, in words."""
        changes = []
        for name, weight, number in zip(self.names, self.weights, saved_numbers, strict=True):
            if number is None:
                changes.append(f"{name} is new and starts from its beginning, with weight {weight_in_words(weight)}")
            elif saved.weights[number] != weight:
                changes.append(
                    f"{name} has weight {weight_in_words(weight)} instead of {weight_in_words(saved.weights[number])}"
                )
        changes += [f"{name} was removed" for name in saved.names if name not in self.names]
        if saved.seed != self.seed:
            changes.append(f"its seed is {self.seed} instead of {saved.seed}")
        if not changes and list(self.names) != saved.names:
            changes.append("its parts are in another order")
        return changes


class SavedMixture(NamedTuple):
    """What a checkpoint says of its mixture, one entry a part in each list."""

    names: list[str]
    weights: list[Any]
    seed: int
    widths: list[int]
    """How many numbers the cursor of each part has."""
    pipelines: list[Any]
    data: list[Any]

    @classmethod
    def from_fingerprint(cls, description: Mapping[str, Any], data: Mapping[str, Any]) -> Self:
        """Read the mixture's description and its data; ``ValueError`` if they do not fit together."""
        names, weights, widths = description["names"], description["weights"], description["widths"]
        saved = cls(names, weights, description["seed"], widths, description["parts"], data["parts"])
        if len({len(each) for each in (saved.names, saved.weights, saved.widths, saved.pipelines, saved.data)}) != 1:
            raise ValueError("its lists of parts have different lengths")
        if any(type(width) is not int or width < 1 for width in saved.widths):
            raise ValueError(f"the widths of cursors are {saved.widths}")
        return saved


def _moved_edits(saved_numbers: Sequence[int | None], parts: Sequence[AdoptedCheckpoint | None], edits: Edits) -> Edits:
    """The edits of the parts of a checkpoint as those of the present parts."""
    moved = []
    for number, part in zip(saved_numbers, parts, strict=True):
        of_part = 0 if number is None else edits_of_part(edits, number)
        moved.append(of_part if part is None or part.move_edits is None else part.move_edits(of_part))
    return join_edits(moved)
