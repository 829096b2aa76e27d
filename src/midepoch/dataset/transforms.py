"""The methods of a dataset that make other items of its items: functions, batches and packs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, Unpack, overload

from midepoch._common.checks import check_integer, checked_version
from midepoch.dataset.formatted import FormattedDataset
from midepoch.dataset.planned import Item
from midepoch.dataset.signatures import (
    Columns,
    Given,
    Made,
    MapOptions,
    OfRows,
    OfTables,
    PackOptions,
    PlainCall,
    PlainMapOptions,
    Row,
)
from midepoch.pipeline.surveyed import with_own_lengths
from midepoch.stages.batch import Batch
from midepoch.stages.flow import WHOLE_LANE
from midepoch.stages.functions import Filter, Map, MapBatches
from midepoch.stages.pack.documents import Others, PackSpec
from midepoch.stages.pack.strategies import Overlong, Strategy
from midepoch.stages.pack.stream import PackStream
from midepoch.stages.pack.windows import PackWindows
from midepoch.stages.stage import with_arguments

if TYPE_CHECKING:
    from midepoch.dataset.dataset import Dataset


class TransformedDataset(FormattedDataset[Item]):
    """A plan with stages. :class:`midepoch.Dataset` adds the methods that act on the order of rows."""

    @overload
    def map(  # type: ignore[overload-overlap]
        self: OfRows, function: Callable[[Row], Mapping[str, Any]], **options: Unpack[PlainMapOptions]
    ) -> OfRows: ...

    @overload
    def map(
        self: "TransformedDataset[Given]",
        function: Callable[[Given], Mapping[str, Any]],
        **options: Unpack[PlainMapOptions],
    ) -> "Dataset[Row]": ...

    @overload
    def map(  # type: ignore[overload-overlap]
        self: "TransformedDataset[Given]",
        function: Callable[[Given], Made],
        **options: Unpack[PlainMapOptions],
    ) -> "Dataset[Made]": ...

    @overload
    def map(
        self: OfRows,
        function: Callable[..., Mapping[str, Any]],
        *,
        batched: bool,
        input_columns: Columns | None = None,
        fn_kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[MapOptions],
    ) -> OfRows: ...

    @overload
    def map(
        self,
        function: Callable[..., Any],
        *,
        batched: bool,
        input_columns: Columns | None = None,
        fn_kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[MapOptions],
    ) -> "Dataset": ...

    @overload
    def map(
        self,
        function: Callable[..., Any],
        *,
        input_columns: Columns,
        fn_kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[MapOptions],
    ) -> "Dataset": ...

    @overload
    def map(
        self,
        function: Callable[..., Any],
        *,
        fn_kwargs: Mapping[str, Any],
        input_columns: None = None,
        **options: Unpack[MapOptions],
    ) -> "Dataset": ...

    @overload
    def map(
        self: OfRows,
        function: Callable[[Row, Any], Mapping[str, Any]] | Callable[[Row, Any, Any], Mapping[str, Any]],
        **options: Unpack[MapOptions],
    ) -> OfRows: ...

    @overload
    def map(
        self: "TransformedDataset[Given]",
        function: Callable[[Given, Any], Any] | Callable[[Given, Any, Any], Any],
        **options: Unpack[MapOptions],
    ) -> "Dataset": ...

    def map(
        self,
        function: Callable[..., Any],
        *,
        batched: bool = False,
        batch_size: int | None = 1000,
        drop_last_batch: bool = False,
        one_to_one: bool = False,
        with_rng: bool = False,
        with_indices: bool = False,
        remove_columns: Sequence[str] | str | None = None,
        input_columns: Sequence[str] | str | None = None,
        fn_kwargs: Mapping[str, Any] | None = None,
        version: str | int | None = None,
    ) -> Any:
        """Apply a function to every item, when the item is read.

            dataset = midepoch.read("data/*.parquet").map(lambda row: {"length": len(row["text"])})

        If ``function`` returns a dict, it updates the item's columns; any other value replaces the item.
        ``remove_columns`` are removed from the item after the call; a new dict may define them again.

        With ``batched=True`` it gets the columns of ``batch_size`` items and may return any number of rows. If
        ``batch_size`` is None or -1, these are all items of a lane, in memory. With ``drop_last_batch`` the last items
        of a lane are left out if they are fewer than ``batch_size``. With ``one_to_one=True`` it promises one row for
        each, in order, made of that row alone, as tokenizers do: then the number of items stays known.

        With ``with_indices=True`` it also gets the row's number, or those of a batch: rows are counted from 0 through
        all files, in any order and epoch, on any number of ranks and workers. With ``with_rng=True`` it also gets a
        NumPy generator that depends only on seed, epoch and row; the index comes first. It gets the values of
        ``input_columns`` instead of the item, and ``fn_kwargs`` as keyword arguments.

        Surveys, caches and checkpoints know a function by its name and by the plain values among ``fn_kwargs`` and the
        arguments of a ``functools.partial``: numbers, text, lists, dicts, sets and NumPy arrays. They do not know its
        code, what it takes from outside, nor what an object such as a tokenizer holds. If one of these changes, pass
        another ``version``, a number or text.
        """
        removed = (remove_columns,) if isinstance(remove_columns, str) else tuple(remove_columns or ())
        adapted = with_arguments(function, input_columns, fn_kwargs)
        call = self.plan.pipeline.call(
            "map", adapted, with_rng=with_rng, with_indices=with_indices, version=checked_version(version)
        )
        size = _group_size(batch_size)
        if one_to_one and not batched:
            raise ValueError(
                "one_to_one=True is for batched=True. Without that, a function returns one row for each anyway."
            )
        if drop_last_batch and (one_to_one or not batched):
            raise ValueError("drop_last_batch=True is for batched=True, and not for one_to_one=True, which keeps all.")
        if one_to_one:
            return self.with_stage(MapBatches(call=call, size=size, one_to_one=True, remove_columns=removed))
        if batched:
            stage = MapBatches(
                call=call, size=size, drop_last=drop_last_batch and size != WHOLE_LANE, remove_columns=removed
            )
            return self.with_stage(stage)
        return self.with_stage(Map(call=call, remove_columns=removed))

    @overload
    def filter(self, function: Callable[[Item], Any], **options: Unpack[PlainCall]) -> Self: ...

    @overload
    def filter(
        self, function: Callable[[Item, int], Any], *, with_indices: bool, version: str | int | None = None
    ) -> Self: ...

    @overload
    def filter(
        self,
        function: Callable[..., Any],
        *,
        batched: bool,
        batch_size: int | None = 1000,
        with_indices: bool = False,
        input_columns: Columns | None = None,
        fn_kwargs: Mapping[str, Any] | None = None,
        version: str | int | None = None,
    ) -> Self: ...

    @overload
    def filter(
        self,
        function: Callable[..., Any],
        *,
        input_columns: Columns,
        with_indices: bool = False,
        fn_kwargs: Mapping[str, Any] | None = None,
        version: str | int | None = None,
    ) -> Self: ...

    @overload
    def filter(
        self,
        function: Callable[..., Any],
        *,
        fn_kwargs: Mapping[str, Any],
        input_columns: None = None,
        with_indices: bool = False,
        version: str | int | None = None,
    ) -> Self: ...

    def filter(
        self,
        function: Callable[..., Any],
        *,
        batched: bool = False,
        batch_size: int | None = 1000,
        with_indices: bool = False,
        input_columns: Sequence[str] | str | None = None,
        fn_kwargs: Mapping[str, Any] | None = None,
        version: str | int | None = None,
    ) -> Self:
        """Keep the items for which ``function`` is true.

            dataset = midepoch.read("data/*.parquet").filter(lambda row: len(row["text"]) > 10)

        With ``batched=True`` it gets the columns of up to ``batch_size`` items and returns a list or an array with one
        truth value for each. It must judge each item alone: a batch is only how it is called, and after a resume
        others are in it. ``with_indices``, ``input_columns``, ``fn_kwargs`` and ``version`` are those of :meth:`map`,
        and so are None and -1 as ``batch_size``.
        """
        adapted = with_arguments(function, input_columns, fn_kwargs)
        call = self.plan.pipeline.call("filter", adapted, with_indices=with_indices, version=checked_version(version))
        return self.with_stage(Filter(call=call, size=_group_size(batch_size) if batched else None))

    @overload
    def batch(self: OfTables, batch_size: int, drop_last_batch: bool = False) -> OfTables: ...  # type: ignore[overload-overlap]

    @overload
    def batch(self, batch_size: int, drop_last_batch: bool = False) -> "Dataset": ...

    def batch(self, batch_size: int, drop_last_batch: bool = False) -> Any:
        """Make one item of several, a dict of columns.

            dataset = midepoch.read("data/*.parquet").shuffle(seed=42).batch(32)

        ``batch_size`` is the number of items in a batch, at least 1. The last batch of a lane may be smaller; with
        ``drop_last_batch=True`` it is left out then.
        """
        return self.with_stage(Batch(size=check_integer("batch_size", batch_size, least=1), drop_last=drop_last_batch))

    @overload
    def pack(self: OfRows, length: int, **options: Unpack[PackOptions]) -> OfRows: ...  # type: ignore[overload-overlap]

    @overload
    def pack(self, length: int, **options: Unpack[PackOptions]) -> "Dataset[Row]": ...

    def pack(
        self,
        length: int,
        *,
        column: str = "input_ids",
        strategy: Strategy = "best_fit",
        window: int = 1024,
        overlong: Overlong = "cut",
        eos: int | None = None,
        pad: int | None = None,
        labels: str | None = None,
        others: Others = "drop",
    ) -> Any:
        """Pack the documents in ``column``, lists of integers, into sequences of ``length`` tokens.

            packs = midepoch.read("data/*.parquet").shuffle(seed=42).map(tokenize).pack(2048, eos=0, pad=0)

        ``strategy`` "best_fit" (fewest packs), "first_fit" (in order of arrival) and "balanced" (equal cost of
        attention) place whole documents, inside windows of ``window`` rows. "concat" cuts one stream of tokens every
        ``length`` tokens. ``overlong`` documents are "cut", dropped ("drop"), or put "alone" in a longer pack. ``eos``
        is appended to each document; ``pad`` fills up each pack.

        A pack is a dict of arrays, or of tensors after ``with_format("torch")``: the tokens, ``position_ids``,
        ``document_ids``, ``cu_seqlens`` and, if rows have them, ``labels``, ``token_type_ids`` and columns whose names
        end in "mask". ``labels`` names the column of labels; with the column of tokens, labels are made of these. Other
        columns are dropped. With ``others="join"`` a pack keeps them: arrays are concatenated in the order of its
        documents, other values become a list; it is None if no document has a value.

        Packs are counted once the rows are surveyed. For lists in local, uncompressed Arrow files that happens by
        itself, when items are first counted; for others call :meth:`survey`.
        """
        pipeline = self.plan.pipeline
        spec = PackSpec(
            length=check_integer("length", length, least=None),
            column=column,
            overlong=overlong,
            eos=None if eos is None else check_integer("eos", eos, least=None),
            pad=None if pad is None else check_integer("pad", pad, least=None),
            labels=labels,
            others=others,
            number=len(pipeline.stages) + 1,
        )
        _, batched = pipeline.item_spec
        if batched:
            raise ValueError("pack after batch is not possible: it packs rows, not batches of them. Put pack first.")
        if pipeline.schema is not None:
            spec.check_schema(pipeline.schema)
        packed = self.with_stage(
            PackStream(spec=spec)
            if strategy == "concat"
            else PackWindows(spec=spec, strategy=strategy, window=check_integer("window", window))
        )
        return packed.with_plan(replace(packed.plan, pipeline=with_own_lengths(packed.plan.pipeline)))


def _group_size(batch_size: int | None) -> int:
    """How many items a batched function gets at a time. None and -1 are all items of a lane, as in `datasets`."""
    return WHOLE_LANE if batch_size is None or batch_size == -1 else batch_size
