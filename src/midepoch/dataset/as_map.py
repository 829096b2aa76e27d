"""A dataset as other libraries know it: by position for samplers, as a column, as pandas frames.

Here is also what to use in place of names that users of other libraries look for.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import islice
from operator import index as as_index
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

from midepoch._common.checks import cached_property, count
from midepoch.delivery.plan import Plan
from midepoch.errors import needs
from midepoch.index.tables import NumberIndex
from midepoch.pipeline.pipeline import PipelineLanes
from midepoch.sources.files import FileRows
from midepoch.sources.source import EpochCut
from midepoch.stages.counted import CountedItems
from midepoch.values.columns import Form

if TYPE_CHECKING:
    from midepoch.dataset.dataset import Dataset

POSITION = "position"
Element = TypeVar("Element", covariant=True)
SHORT_FORMS: dict[Any, Form] = {
    **{None: "python", "np": "numpy", "pt": "torch", "pytorch": "torch", "pa": "arrow", "pyarrow": "arrow"},
}
TO_FRAMES = 'Use with_format("arrow"), and {} where you need a frame'
FORM_INSTEAD = {
    **dict.fromkeys(("pandas", "pd"), TO_FRAMES.format("batch.to_pandas()")),
    **dict.fromkeys(("polars", "pl"), TO_FRAMES.format("polars.from_arrow(batch)")),
    "jax": 'Use with_format("numpy"), and jax.numpy.asarray(...) where you need an array',
}
"""What to do for formats of `datasets` that are not here."""
WRITES = (
    "midepoch does not write such files: dataset.cache(folder) writes Arrow files, and dataset.to_pandas() has all rows"
)
METHOD_INSTEAD = {
    **dict.fromkeys(("push_to_hub", "to_csv", "to_json", "to_parquet", "to_sql"), WRITES),
    **dict.fromkeys(("info", "split"), "only datasets of from_hf and fast_load_iterable_dataset have it"),
    **dict.fromkeys(("set_transform", "with_transform"), "pass the function to dataset.map"),
    "_distributed": "split_dataset_by_node of `datasets` takes its own datasets only: call dataset.shard(world_size, "
    "rank), or import the function of the same name from midepoch.distributed",
    "_ex_iterable": "this function of `datasets` takes its own datasets only: concatenate_datasets is midepoch.concat "
    "here, and interleave_datasets is midepoch.mix",
    "plan": "extensions use midepoch.extending.plan_of(dataset)",
    "reshard": "it is not needed: any number of ranks and workers shares the rows of any number of files",
    "set_format": "use the dataset that dataset.with_format(...) returns",
    "sort": "rows are read in the order of the files: sort them when you write them",
    "to_dict": "use dataset.to_list(), or dataset.to_pandas()",
}
"""What to do for methods of `datasets` that are not here."""


class MapView(Generic[Element]):
    """The items of one epoch of a dataset, by their position in it: ``len(view)``, ``view[5]``. It can be pickled."""

    def __init__(self, plan: Plan, epoch: int) -> None:
        """Take a plan whose items are counted. Users call ``dataset.as_map()``."""
        self._plan, self._epoch = plan, epoch
        self._opened: tuple[int, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_plan": self._plan, "_epoch": self._epoch, "_opened": None}

    @cached_property
    def _counted(self) -> CountedItems:
        pipeline = self._plan.pipeline
        return PipelineLanes(pipeline, EpochCut(epoch=self._epoch, lanes=1)).counted(0, pipeline.begin)

    def _source(self) -> Any:
        """What this process holds open. A forked process opens files of its own."""
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = os.getpid(), self._plan.pipeline.source.open(1)
        return self._opened[1]

    def __len__(self) -> int:
        return self._counted.total()

    def __getitem__(self, position: int) -> Element:
        """The item at a position. A negative one counts from the end."""
        return self.__getitems__([position])[0]

    def __getitems__(self, positions: Sequence[int]) -> list[Element]:
        """The items at some positions, read together. DataLoader calls this for a batch."""
        size = len(self)
        numbers = np.array([as_index(position) for position in positions], np.int64)
        wrong = numbers[(numbers < -size) | (numbers >= size)]
        if len(wrong):
            raise IndexError(f"There is no item {wrong[0]}; the dataset has {count('item', size)}.")
        if not len(numbers):
            return []
        rising, places = np.unique(np.where(numbers < 0, numbers + size, numbers), return_inverse=True)
        flow = self._counted.flow(self._source(), iter([rising]))
        items = [item for item, _, _ in flow.as_single_items()]
        return [items[place] for place in places.tolist()]

    def sampler(
        self, *, seed: int | None = None, num_shards: int = 1, index: int = 0, lanes: int | None = None
    ) -> "Dataset[int]":
        """The positions in an order, for ``DataLoader(view, sampler=...)``; a true permutation if there is a ``seed``.

        The order is another one in every epoch. Ranks get disjoint positions by ``num_shards`` and ``index``. The
        sampler has ``state_dict``, ``load_state_dict`` and ``set_epoch``; a state fits any number of ranks. With
        ``lanes`` the order is the same on every number of ranks that divides them.

        A DataLoader with workers asks for positions ahead of the batches it delivers. torchdata's StatefulDataLoader
        knows which were delivered; with others take states at the end of an epoch, or without workers.
        """
        from midepoch.dataset.dataset import Dataset, from_source

        rows = FileRows(index=NumberIndex(len(self), POSITION, POSITION))
        positions = from_source(rows, Dataset)
        if seed is not None:
            positions = positions.shuffle(seed, level="row")
        if lanes is not None:
            positions = positions.lanes(lanes)
        return positions.shard(num_shards, index).map(itemgetter(POSITION))


@dataclass(frozen=True)
class Column:
    """The values of a column, or of a field of a struct in it. It can be iterated over any number of times."""

    dataset: "Dataset"
    names: tuple[str, ...]
    """The column, the field in it, and so on."""

    def __iter__(self) -> Iterator[Any]:
        for item in copy(self.dataset):
            value = item
            for name in self.names:
                value = value[name]
            yield value

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, name: str) -> "Column":
        if not isinstance(name, str):
            raise TypeError(f"A column is iterated over, not indexed by {name!r}: list(dataset[{self.names[0]!r}]).")
        return replace(self, names=(*self.names, name))


def frames(dataset: "Dataset", size: int, *, of_batches: bool) -> Iterator[Any]:
    """The items as DataFrames of ``size`` rows: by Arrow where they are unchanged, else from their Python values."""
    pandas = _pandas()
    if of_batches:
        for batch in dataset:
            yield batch.to_pandas() if isinstance(batch, pa.RecordBatch) else pandas.DataFrame(dict(batch))
    elif dataset.column_names is not None:
        yield from (batch.to_pandas() for batch in dataset.with_format("arrow").batch(size))
    else:
        items = iter(dataset)
        while rows := list(islice(items, size)):
            yield pandas.DataFrame(rows)


def joined(parts: Iterator[Any], columns: list[str] | None) -> Any:
    """All of some DataFrames as one, which has these columns if there are none."""
    pandas, found = _pandas(), list(parts)
    return pandas.concat(found, ignore_index=True) if found else pandas.DataFrame(columns=columns)


def _pandas() -> Any:
    """The module, imported when it is first needed. Raises with the install command if it is missing."""
    with needs("pandas", "pandas", "to_pandas"):
        import pandas
    return pandas


def arrow_type(method: str, wanted: Any) -> pa.DataType:
    """An Arrow type from its name, or from a feature of `datasets`, which its user has imported."""
    if isinstance(wanted, pa.DataType):
        return wanted
    if isinstance(wanted, str):
        try:
            return pa.type_for_alias(wanted)
        except ValueError as error:
            raise ValueError(f'{method}: {wanted!r} is not a type of Arrow, such as "int32" or "string".') from error
    datasets = sys.modules.get("datasets")
    kind = type(wanted).__name__
    if datasets is None or kind in ("Audio", "ClassLabel", "Image", "Nifti", "Pdf", "Video"):
        raise TypeError(
            f"{method} needs pyarrow types, their names, or features of datasets that are plain types, got a {kind}. "
            "Media are decoded by dataset.decode(...); classes are numbered by a map."
        )
    return datasets.Features({"column": wanted}).arrow_schema.field(0).type
