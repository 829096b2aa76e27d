"""What type checkers know of the methods of a dataset: the kinds of items, and the options that overloads name.

Rows and batches are dicts, so methods keep the type of a dataset unless a function or a format changes it. What type
checkers cannot say is ``Dataset[Any]``.
"""

from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypedDict, TypeVar

from midepoch.dataset.planned import PlannedDataset
from midepoch.stages.pack.documents import Others
from midepoch.stages.pack.strategies import Overlong, Strategy

Row = dict[str, Any]
Columns = Sequence[str] | str
DictForm = Literal["python", "numpy", "torch", "np", "pt", "pytorch"]
ArrowForm = Literal["arrow", "pa", "pyarrow"]
AnyForm = DictForm | ArrowForm

OfRows = TypeVar("OfRows", bound=PlannedDataset[Row])
"""A dataset of dicts, of any class, which it keeps."""
Given = TypeVar("Given")
"""What a function gets."""
Made = TypeVar("Made")
"""What a function returns."""


class Table(Protocol):
    """What type checkers know of a record batch: a batch of such is one too."""

    @property
    def columns(self) -> Any:
        """The columns."""


OfTables = TypeVar("OfTables", bound=PlannedDataset[Row | Table])
"""The same, of dicts or tables."""


class PlainCall(TypedDict, total=False):
    """Options of ``map`` and ``filter`` with which a function gets the item and nothing else."""

    batched: Literal[False]
    batch_size: int | None
    with_indices: Literal[False]
    input_columns: None
    fn_kwargs: None
    version: str | int | None


class PlainMapOptions(PlainCall, total=False):
    """The same of ``map``."""

    with_rng: Literal[False]
    remove_columns: Columns | None


class MapOptions(TypedDict, total=False):
    """The other options of ``map``, where its function gets more, or something else."""

    batch_size: int | None
    drop_last_batch: bool
    one_to_one: bool
    with_rng: bool
    with_indices: bool
    remove_columns: Columns | None
    version: str | int | None


class PackOptions(TypedDict, total=False):
    """Options of ``pack``."""

    column: str
    strategy: Strategy
    window: int
    overlong: Overlong
    eos: int | None
    pad: int | None
    labels: str | None
    others: Others
