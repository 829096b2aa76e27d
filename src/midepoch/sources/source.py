"""Where a pipeline's items come from: what every source gives."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import pyarrow as pa

from midepoch.checkpoint.lanes import Cursor
from midepoch.checkpoint.state import AppendedFiles
from midepoch.stages.flow import Flow
from midepoch.values.forms import Form

if TYPE_CHECKING:  # it loads parts of Arrow that only filters need
    pass

Mode = Literal["file", "example"]


class Every(NamedTuple):
    """Which rows of a lane are wanted: of each ``stride`` groups of ``rows`` rows, the one numbered ``phase``."""

    rows: int = 1
    phase: int = 0
    stride: int = 1


ALL = Every()
ItemSpec = tuple[Form, bool]
"""The form of items, and whether they are batches."""
Move = Callable[[Cursor], Cursor]
"""What makes a cursor of a checkpoint one of now."""


class Adopted(NamedTuple):
    """A checkpoint that fits: how its cursors are to be moved, if at all, and its pipeline as it would be told now."""

    move: Move | None
    pipeline: Any
    changes: tuple[str, ...] = ()
    """What is different now, in words."""


class Reading(Protocol):
    """What one reader of a source holds open. Belongs to the process that made it."""

    @property
    def decodes(self) -> bool:
        """Whether passing over rows of others costs more than skipping them."""

    def close(self) -> None:
        """Let go of it."""


class SourceLanes(Protocol):
    """A source cut into lanes, in one epoch."""

    def size(self, lane: int) -> int:
        """How many rows a lane has, where that is known."""

    def reaches(self, lane: int, cursor: Cursor, margin: int) -> bool:
        """Whether a run can have come to a cursor, whose last group may reach over the end by a margin."""

    def flow(self, reading: Any, lane: int, cursor: Cursor, every: Every) -> Flow:
        """The items of a lane from a cursor on."""


class Source(Protocol):
    """A source of items, as it was asked for: everything about it that changes them."""

    @property
    def uniform(self) -> bool:
        """Whether a lane's cursor follows from the number of items it has given."""

    @property
    def begin(self) -> Cursor:
        """The cursor at the beginning of a lane."""

    @property
    def seed(self) -> int:
        """The seed for the users' functions."""

    @property
    def label(self) -> str:
        """A short name for people."""

    @property
    def has_rows(self) -> bool:
        """Whether its items are rows of files, which errors can name."""

    @property
    def item_spec(self) -> ItemSpec:
        """How its items look."""

    @property
    def survives_fork(self) -> bool:
        """Whether a forked process can read on: the clients of most object stores do not survive it."""

    @property
    def schema(self) -> pa.Schema | None:
        """That of its items where they are rows of files as they are; None where only the items tell."""

    @property
    def fingerprint(self) -> dict[str, Any]:
        """What a state remembers of the data."""

    def describe(self) -> list[dict[str, Any]]:
        """What a state remembers of how the items are made of it."""

    def cut(self, *, epoch: int, lanes: int, mode: Mode, appended: AppendedFiles = ()) -> SourceLanes:
        """The lanes of an epoch, to which files may have been added."""

    def open(self, lanes: int) -> Reading:
        """What a reader of so many lanes needs."""

    def locate(self, key: int) -> tuple[str, int]:
        """The file and the row in it that a key stands for."""

    def adopt(self, then: Mapping[str, Any]) -> Adopted:
        """How a state with a fingerprint can be gone on from; raises, and says what differs, if it cannot."""
