"""A dataset as a table: the methods that act on its columns, and those that return all of its rows at once."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Self, TypeVar

import pyarrow as pa

from midepoch._common.checks import check_integer, count
from midepoch.dataset.planned import HubDescription, Item, PlannedDataset
from midepoch.errors import MissingExtraError, SchemaMismatchError
from midepoch.pipeline.mixture import Mixture
from midepoch.pipeline.pipeline import Pipeline
from midepoch.sources.files import FileRows
from midepoch.stages.batch import Batch
from midepoch.stages.columns import AddColumn, CastColumns, Convert, RenameColumns, Select
from midepoch.values.features import Features, features_of

AnyDataset = TypeVar("AnyDataset", bound=PlannedDataset)
FRAME_ROWS = 1000
"""How many rows are converted at a time on their way to a DataFrame."""
WRITES = (
    "midepoch does not write such files: dataset.cache(folder) writes Arrow files, and dataset.to_pandas() has all rows"
)
OF_HUB = "only datasets of from_hf and fast_load_iterable_dataset have it"
NOT_HERE = {
    "_distributed": "split_dataset_by_node of `datasets` takes its own datasets only: call dataset.shard(world_size, "
    "rank), or import the function of the same name from midepoch.distributed",
    "_ex_iterable": "this function of `datasets` takes its own datasets only: concatenate_datasets is midepoch.concat "
    "here, and interleave_datasets is midepoch.mix",
    "info": OF_HUB,
    "push_to_hub": WRITES,
    "reshard": "it is not needed: any number of ranks and workers shares the rows of any number of files",
    "set_format": "use the dataset that dataset.with_format(...) returns",
    "set_transform": "pass the function to dataset.map",
    "split": OF_HUB,
    "sort": "rows are read in the order of the files: sort them when you write them",
    "to_csv": WRITES,
    "to_dict": "use dataset.to_list(), or dataset.to_pandas()",
    "to_json": WRITES,
    "to_parquet": WRITES,
    "to_sql": WRITES,
    "with_transform": "pass the function to dataset.map",
}
"""What users of `datasets` look for, and what to do here instead."""


class TableDataset(PlannedDataset[Item]):
    """A plan whose items have columns. :class:`midepoch.Dataset` adds the methods that act on rows."""

    def select_columns(self, names: Sequence[str] | str) -> Self:
        """Keep these columns.

            dataset = midepoch.read("data/*.parquet").select_columns(["id", "text"])

        ``names`` is the name of a column, or a list of names, in the order that items will have. None may come twice.
        Directly after ``read`` the others are never read from the files, and a name that is unknown raises.
        """
        chosen = (names,) if isinstance(names, str) else tuple(names)
        if len(set(chosen)) < len(chosen):
            raise ValueError(f"select_columns names a column twice: {list(chosen)}.")
        pipeline, rows = self.plan.pipeline, self.plan.pipeline.source
        if isinstance(rows, FileRows) and pipeline.keeps_rows:
            missing = [name for name in chosen if name not in rows.names]
            if missing:
                raise SchemaMismatchError(f"There is no column {missing[0]!r}. There are: {', '.join(rows.names)}.")
            selected = replace(pipeline, source=replace(rows, columns=chosen))
            return self.with_plan(replace(self.plan, pipeline=selected))
        return self.with_stage(Select(names=chosen))

    def remove_columns(self, column_names: Sequence[str] | str) -> Self:
        """Leave out these columns, from this stage on.

            dataset = midepoch.read("data/*.parquet").remove_columns(["x"])

        ``column_names`` is the name of a column, or a list of names; one that is unknown raises. To read fewer columns,
        use ``read(columns=...)``.
        """
        names = (column_names,) if isinstance(column_names, str) else tuple(column_names)
        return self._with_names("remove_columns", dict.fromkeys(names))

    def rename_column(self, original_column_name: str, new_column_name: str) -> Self:
        """Give a column another name.

            dataset = midepoch.read("data/*.parquet").rename_column("text", "document")

        The column ``original_column_name``, which must exist, is named ``new_column_name`` from this stage on. No other
        column may have that name.
        """
        return self._with_names("rename_column", {original_column_name: new_column_name})

    def rename_columns(self, column_mapping: Mapping[str, str]) -> Self:
        """Give columns other names.

            dataset = midepoch.read("data/*.parquet").rename_columns({"text": "document", "x": "value"})

        ``column_mapping`` is a dict of old and new names, which hold from this stage on. Each old name must exist, and
        no two columns may end up with the same name.
        """
        return self._with_names("rename_columns", column_mapping)

    def _with_names(self, name: str, names: Mapping[str, str | None]) -> Self:
        stage = RenameColumns(name=name, names=tuple(names.items()))
        _ = stage.item_schema(self.plan.pipeline.item_schema)  # raises now if a column is known to be missing
        return self.with_stage(stage)

    def cast(self, features: pa.Schema | Mapping[str, Any]) -> Self:
        """Give columns other types, from this stage on.

            dataset.cast({"id": "int32", "score": pyarrow.float32()})

        ``features`` is a ``pyarrow.Schema`` or a dict: a name, and a pyarrow type, the name of one, or a feature of
        `datasets`. Columns that it does not name stay as they are. A value that does not fit its new type raises. Types
        of files that differ from file to file are for ``read(schema=...)``.
        """
        if isinstance(features, pa.Schema):
            features = {field.name: field.type for field in features}
        return self._with_types("cast", features)

    def cast_column(self, column: str, feature: Any) -> Self:
        """Give a column another type, from this stage on.

            dataset = midepoch.read("data/*.parquet").cast_column("x", "float32")

        ``column`` is its name. ``feature`` is a pyarrow type, the name of one, or a feature of `datasets` that is a
        plain type. A value that does not fit its new type raises.
        """
        return self._with_types("cast_column", {column: feature})

    def _with_types(self, name: str, types: Mapping[str, Any]) -> Self:
        stage = CastColumns(
            name=name, types=tuple((column, _arrow_type(name, wanted)) for column, wanted in types.items())
        )
        _ = stage.item_schema(self.plan.pipeline.item_schema)
        return self.with_stage(stage)

    def add_column(self, name: str, column: Any) -> Self:
        """Add a column that is in memory.

            dataset = midepoch.read("data/*.parquet")
            dataset = dataset.add_column("weight", numpy.ones(len(dataset))).shuffle(seed=42)

        ``name`` must be new. ``column`` is a list or an array with a value for each row of the files, in their order. A
        row keeps its value under any later shuffle, shard or resume. Put it before methods that choose or order rows.
        Values that follow from the row itself are made by a ``map``.
        """
        rows = self.file_rows("add_column")
        self.plan.pipeline.check_row_numbers("add_column")
        if rows.steps or rows.where is not None:
            raise ValueError(
                "add_column after a method that chooses or orders rows is not possible: the values are those of the "
                "rows in the order of the files. Put add_column directly after read."
            )
        values = column if isinstance(column, pa.Array) else pa.array(column)
        if len(values) != rows.size:
            raise ValueError(f"add_column: there are {count('value', len(values))} for {count('row', rows.size)}.")
        if name in (self.column_names or ()):
            raise SchemaMismatchError(f"add_column: there is a column {name!r} already. Remove it first.")
        return self.with_stage(AddColumn.of(name, values))

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows as they are read from the files."""
        return self.file_rows("schema").schema

    @property
    def column_names(self) -> list[str] | None:
        """The columns of the items. None after a function, because only reading tells what it returns."""
        known = self.plan.pipeline.item_schema
        return None if known is None else list(known.names)

    @property
    def features(self) -> Features | None:
        """The features that `datasets` stored in the files, for example ``features["label"].names`` of a ClassLabel.

        They are those of the present columns; other columns are Values of their Arrow type. None after a function, as
        for :attr:`column_names`.
        """
        known = self.plan.pipeline.item_schema
        return None if known is None else features_of(known)

    @property
    def info(self) -> Any:
        """The ``DatasetInfo`` of a Hugging Face dataset, as it was opened. Other datasets have none."""
        return self._hub_description("info").info()

    @property
    def split(self) -> Any:
        """The split of a Hugging Face dataset, such as "train" or "train[:90%]". Other datasets have none."""
        return self._hub_description("split").split

    def _hub_description(self, name: str) -> HubDescription:
        if self.hub_description is None:
            raise AttributeError(name)  # then __getattr__ is asked, and says what is wrong
        return self.hub_description

    @property
    def num_shards(self) -> int:
        """The number of files. Any number of ranks and workers shares their rows, also more than there are files."""
        return _file_count(self.plan.pipeline)

    @property
    def n_shards(self) -> int:
        """Another name of :attr:`num_shards`."""
        return self.num_shards

    def __getitem__(self, column: str) -> "Column":  # type: ignore[override]
        """The values of one column in the present epoch: ``list(dataset["text"])``. No position moves.

        There is no ``dataset[5]``: rows are read in the order of the epoch. ``dataset.select([5])`` has that row.
        """
        if not isinstance(column, str):
            raise TypeError(
                f"dataset[{column!r}] is not possible: a dataset is read in the order of its epoch. Pass the name of "
                "a column, or use dataset.select([...]) for the rows at some positions."
            )
        known = self.column_names
        if known is not None and column not in known:
            raise SchemaMismatchError(f"There is no column {column!r}. There are: {', '.join(known)}.")
        return Column(_one_epoch(self if known is None else self.select_columns(column), self.epoch), (column,))

    if not TYPE_CHECKING:  # it would make type checkers accept any name

        def __getattr__(self, name: str) -> Any:
            hint = NOT_HERE.get(name)
            hint = f". {hint}" if hint else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}")

    def to_list(self) -> list[Item]:
        """All items of the present epoch, in memory.

            rows = midepoch.read("data/*.parquet").take(10).to_list()

        No position moves.
        """
        return list(_one_epoch(self, self.epoch))

    def to_pandas(self, batch_size: int | None = None, batched: bool = False) -> Any:
        """All items of the present epoch as a pandas DataFrame, in memory. No position moves.

            frame = midepoch.read("data/*.parquet").take(10).to_pandas()

        With ``batched=True`` this is an iterator over DataFrames of ``batch_size`` rows, by default 1000.
        """
        if batched:
            size = FRAME_ROWS if batch_size is None else check_integer("batch_size", batch_size, least=1)
            return _frames(self, size)
        pandas = _pandas()
        frames = list(_frames(self, FRAME_ROWS))
        return pandas.concat(frames, ignore_index=True) if frames else pandas.DataFrame(columns=self.column_names)


@dataclass(frozen=True)
class Column:
    """The values of a column, or of a field of a struct in it. It can be iterated over any number of times."""

    dataset: TableDataset
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


def _arrow_type(method: str, wanted: Any) -> pa.DataType:
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


def _file_count(pipeline: Pipeline) -> int:
    source = pipeline.source
    if isinstance(source, Mixture):
        return sum(map(_file_count, source.parts))
    assert isinstance(source, FileRows)
    return len(source.index.view.names)


def _pandas() -> Any:
    """The module, imported when it is first needed. Raises with the install command if it is missing."""
    try:
        import pandas
    except ImportError as error:
        raise MissingExtraError("pandas", "pandas", "to_pandas") from error
    return pandas


def _frames(dataset: TableDataset, size: int) -> Iterator[Any]:
    """The items as DataFrames of ``size`` rows: by Arrow where they are unchanged, else from their Python values."""
    pandas, pipeline = _pandas(), dataset.plan.pipeline
    _, is_batched = pipeline.item_spec
    if is_batched:
        for batch in _one_epoch(dataset, dataset.epoch):
            yield batch.to_pandas() if isinstance(batch, pa.RecordBatch) else pandas.DataFrame(dict(batch))
    elif pipeline.item_schema is not None:
        in_batches = dataset.with_stage(Convert(form="arrow")).with_stage(Batch(size=size))
        yield from (batch.to_pandas() for batch in _one_epoch(in_batches, dataset.epoch))
    else:
        items = iter(_one_epoch(dataset, dataset.epoch))
        while rows := list(islice(items, size)):
            yield pandas.DataFrame(rows)


def _one_epoch(dataset: AnyDataset, epoch: int) -> AnyDataset:
    """The same items with a position of their own, at the beginning of an epoch, and no epoch after it."""
    alone = dataset.with_plan(replace(dataset.plan, epochs_per_loop=1))
    alone.set_epoch(epoch)
    return alone
