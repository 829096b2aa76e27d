"""The data set that users build: lazy, immutable but for where its own iteration stands."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Self

import pyarrow as pa

from midepoch._common.checks import Size, check_integer
from midepoch._common.world import launched_rank, torch_worker
from midepoch.checkpoint.state import State
from midepoch.delivery.plan import Plan
from midepoch.delivery.position import Position
from midepoch.delivery.progress import Progress
from midepoch.delivery.reader import take_turns
from midepoch.delivery.workers import SharedWithWorkers
from midepoch.errors import SchemaMismatchError
from midepoch.index.build import open_index
from midepoch.index.hive import HiveIndex
from midepoch.order.orders import Level, OrderStep, Shuffle, Slice
from midepoch.pipeline.pipeline import Pipeline
from midepoch.sources.files import FileRows
from midepoch.stages.batch import Batch, FilterBatches, MapBatches
from midepoch.stages.pack.spec import Others, Recipe
from midepoch.stages.pack.stage import PackStream, PackWindows
from midepoch.stages.pack.strategies import Overlong, Strategy
from midepoch.stages.stage import Stage
from midepoch.stages.transform import Convert, Filter, Map, Select
from midepoch.storage.listing import Listing, PathSpec
from midepoch.storage.options import CACHE, Fetch
from midepoch.values.collate import standalone
from midepoch.values.features import Features, features_of
from midepoch.values.forms import FORMS, Form, torch_module
from midepoch.values.media import Decode, to_decode

Mode = Literal["auto", "file", "example"]
FILTER_ROWS = 1000


def read(
    source: PathSpec | Listing,
    *,
    format: str | None = None,
    columns: Sequence[str] | None = None,
    filters: Any = None,
    partitioning: Literal["hive"] | None = None,
    index_dir: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    read_ahead: Size | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_bytes: Size = CACHE,
) -> "Dataset":
    """Open Arrow, Parquet, ORC, JSON and CSV files in place.

    ``source`` is a file, a folder (with its subfolders), a glob, or a list of those, as paths or URLs. Files are told
    apart by their bytes, and CSV by its name; ``format`` ("arrow", "parquet", "orc", "jsonl", "json" or "csv") insists,
    and decides where neither tells; "lines" gives JSON lines as text, in a column "line". ``columns`` reads those
    columns only. ``filters``, a ``pyarrow.compute`` expression, gives only the rows for which it is true, and leaves
    out Parquet row groups whose statistics rule that out. ``partitioning="hive"`` makes columns of folders named
    key=value. Nothing is read but headers and footers, and text files once through; the index of their blocks is kept
    in ``index_dir``, by default ``MIDEPOCH_INDEX_DIR`` or a folder in the user's cache.

    Object stores, s3://, gs:// and whatever fsspec knows, are reached with ``storage_options`` (key, secret, token,
    endpoint, region, anonymous …), which are kept in memory alone. Their blocks are fetched by threads, ``read_ahead``
    bytes (by default "256MiB") ahead of the one in use, and kept in ``cache_dir``, if that is given, up to
    ``cache_bytes``. For files on this machine these four change nothing.
    """
    fetch = Fetch.of(read_ahead, cache_dir, cache_bytes)
    if isinstance(columns, str):
        raise TypeError(f"columns must be a list of names, got the string {columns!r}; pass [{columns!r}].")
    if partitioning not in (None, "hive"):
        raise ValueError(f"partitioning is {partitioning!r}; it can be 'hive', or left out.")
    index = open_index(source, format=format, index_dir=index_dir, storage_options=storage_options)
    if partitioning == "hive":
        index = HiveIndex(index)
    rows = FileRows(index=index, columns=None if columns is None else tuple(columns), fetch=fetch)
    _ = rows.schema  # files that disagree are told here, not at the first row
    if filters is not None:
        from midepoch.index.pruning import Where  # which loads parts of Arrow that nothing else needs

        rows = replace(rows, where=Where.of(index, filters))
    return Dataset(Plan(pipeline=Pipeline(source=rows)))


class Dataset:
    """Rows of files, in an order, through stages. Every method that changes something returns a new data set.

    Iterating goes on where the data set stands: at the beginning, where the last loop stopped, where
    ``load_state_dict`` or ``set_epoch`` put it. After a full pass that is the next epoch.
    """

    def __init__(self, plan: Plan) -> None:
        """Use :func:`midepoch.read`."""
        self._plan = plan
        self._position = Position(State())

    def shuffle(self, seed: int | None = None, *, level: Level = "block", window: int = 8192) -> Self:
        """Permute the rows, anew in every epoch, by a pure function of seed and epoch.

        ``level="file"`` permutes the files. ``"block"`` permutes the blocks of all files (record batches, row
        groups) and then the rows inside windows of about ``window`` rows. ``"row"`` is a true permutation of all
        rows in constant memory, for memory-mapped Arrow. Without a seed it is 0, so that all ranks agree.
        """
        if level not in ("file", "block", "row"):
            raise ValueError(f"level is {level!r}; it can be 'file', 'block' or 'row'.")
        seed = 0 if seed is None else check_integer("seed", seed, least=None)
        return self._ordered(
            "shuffle", Shuffle(seed=seed, level=level, window=check_integer("window", window, least=1))
        )

    def take(self, n: int) -> Self:
        """Only the first ``n`` rows of the order. Nothing is read for it."""
        return self._ordered("take", Slice(start=0, stop=check_integer("n", n)))

    def skip(self, n: int) -> Self:
        """All but the first ``n`` rows of the order. Nothing is read for it."""
        return self._ordered("skip", Slice(start=check_integer("n", n), stop=None))

    def shard(self, num_shards: int | None = None, index: int | None = None, mode: Mode = "auto") -> Self:
        """The part of rank ``index`` of ``num_shards``: parts are disjoint and together complete.

        Without arguments both come from ``torch.distributed`` or the launcher's environment. ``mode="file"``
        gives whole files to each rank; "example" cuts evenly; "auto" cuts evenly, which is at whole files
        where those are equal.
        """
        if mode not in ("auto", "file", "example"):
            raise ValueError(f"mode is {mode!r}; it can be 'auto', 'file' or 'example'.")
        if (num_shards is None) != (index is None):
            raise ValueError("Pass both num_shards and index, or neither.")
        if num_shards is None or index is None:
            found = launched_rank()
            if found is None:
                raise ValueError(
                    "shard() found neither an initialised torch.distributed nor RANK and WORLD_SIZE in the "
                    "environment. Start with torchrun, or pass num_shards and index."
                )
            index, num_shards = found
        ranks, rank = check_integer("num_shards", num_shards, least=1), check_integer("index", index)
        if rank >= ranks:
            raise ValueError(f"index is {rank} of {ranks} shards; it must lie in 0 … {ranks - 1}.")
        plan = self._plan
        cut: Literal["file", "example"] = "file" if mode == "file" else "example"
        return self._new(replace(plan, ranks=plan.ranks * ranks, rank=plan.rank + plan.ranks * rank, mode=cut))

    def lanes(self, n: int) -> Self:
        """Cut every epoch into ``n`` lanes, so that runs on other numbers of readers have the same order."""
        return self._new(replace(self._plan, lanes=check_integer("n", n, least=1)))

    def map(
        self,
        fn: Callable[..., Any],
        *,
        batched: bool = False,
        batch_size: int = 1000,
        with_rng: bool = False,
        remove_columns: Sequence[str] | str | None = None,
    ) -> Self:
        """Apply a function to every item, when it is asked for.

        A dict that ``fn`` returns is laid over the item's columns, less ``remove_columns``; anything else takes
        the item's place. With ``batched=True`` it gets the columns of ``batch_size`` items and may return any number
        of rows. With ``with_rng=True`` it also gets a NumPy generator that depends on seed, epoch and row alone.
        """
        removed = (remove_columns,) if isinstance(remove_columns, str) else tuple(remove_columns or ())
        call = self._plan.pipeline.call("map", fn, with_rng=with_rng)
        if batched:
            return self._staged(MapBatches(call=call, size=batch_size, remove_columns=removed))
        return self._staged(Map(call=call, remove_columns=removed))

    def filter(self, fn: Callable[..., Any], *, batched: bool = False) -> Self:
        """Keep the items for which a function is true; with ``batched=True`` it gets columns and returns a mask."""
        call = self._plan.pipeline.call("filter", fn)
        return self._staged(FilterBatches(call=call, size=FILTER_ROWS) if batched else Filter(call=call))

    def batch(self, n: int, drop_last: bool = False) -> Self:
        """Make one item of ``n``: a dict of columns. The last of each lane may be smaller, or is left out."""
        return self._staged(Batch(size=n, drop_last=drop_last))

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
    ) -> Self:
        """Make packs of ``length`` tokens of the documents in ``column``, which is lists of whole numbers.

        ``strategy`` "best_fit" (fewest packs), "first_fit" (in order of arrival) and "balanced" (even cost of
        attention) lay out whole documents inside windows of ``window`` rows; "concat" cuts one stream of tokens every
        ``length``. ``overlong`` documents are cut, dropped, or put alone in a longer pack. ``eos`` is appended to each
        document, and ``pad`` fills each pack up. A pack is a dict of arrays, or tensors where the format is "torch":
        the tokens, ``position_ids``, ``document_ids``, ``cu_seqlens``, and, where rows have them, ``labels``,
        ``token_type_ids`` and columns whose name ends in "mask". ``labels`` may name another column; the tokens' own
        makes labels of them. Other columns are left out, or with ``others="join"`` given to the pack: arrays end to
        end in the order of its documents, other values as a list, None where a pack has none.
        """
        pipeline = self._plan.pipeline
        recipe = Recipe(
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
            recipe.check_schema(pipeline.schema)
        if strategy == "concat":
            return self._staged(PackStream(recipe=recipe))
        return self._staged(PackWindows(recipe=recipe, strategy=strategy, window=check_integer("window", window)))

    def select_columns(self, names: Sequence[str] | str) -> Self:
        """Only these columns. Directly after ``read`` the others are not even read."""
        chosen = (names,) if isinstance(names, str) else tuple(names)
        if len(set(chosen)) < len(chosen):
            raise ValueError(f"select_columns names a column twice: {list(chosen)}.")
        pipeline, rows = self._plan.pipeline, self._plan.pipeline.source
        if isinstance(rows, FileRows) and pipeline.keeps_rows:
            missing = [name for name in chosen if name not in rows.names]
            if missing:
                raise SchemaMismatchError(f"There is no column {missing[0]!r}. There are: {', '.join(rows.names)}.")
            selected = replace(pipeline, source=replace(rows, columns=chosen))
            return self._new(replace(self._plan, pipeline=selected))
        return self._staged(Select(names=chosen))

    def with_format(self, form: Form) -> Self:
        """From here on, items hold "python", "numpy" or "torch" values, or are Arrow record batches ("arrow")."""
        if form not in FORMS:
            raise ValueError(f"The format is {form!r}; it can be {', '.join(map(repr, FORMS))}.")
        if form == "torch":
            torch_module()
        return self._staged(Convert(form=form))

    def decode(self, *columns: str) -> Self:
        """Turn images into PIL images and sounds into arrays, in the process that reads them.

        ``columns`` are names, or the kinds "image" and "audio"; without any, all Image and Audio features are decoded.
        They stay bytes otherwise. Needs ``midepoch[image]`` or ``midepoch[audio]``.
        """
        pipeline = self._plan.pipeline
        if (grouping := pipeline.first_resizing) is not None:
            raise ValueError(f"decode after {grouping} is not possible: it works on single rows. Put decode first.")
        function = Decode(features=to_decode(self.schema, self.features, columns))
        return self._staged(Map(call=pipeline.call("decode", function)))

    def repeat(self, n: int | None = None) -> Self:
        """Let one loop run through ``n`` epochs, or for ever, each with its own shuffle."""
        return self._new(replace(self._plan, passes=None if n is None else check_integer("n", n, least=1)))

    def _new(self, plan: Plan) -> Self:
        made = object.__new__(type(self))
        Dataset.__init__(made, plan)
        return made

    def _ordered(self, name: str, step: OrderStep) -> Self:
        """A data set with one more step of its order, which must not depend on what stages make of the rows."""
        pipeline = self._plan.pipeline
        grouping = pipeline.first_resizing
        if grouping is not None:
            raise ValueError(
                f"{name} after {grouping} is not possible: {grouping} changes the number of items, and {name} acts on "
                f"rows without reading them. Put {name} first."
            )
        rows = self._rows(name)
        if rows.where is not None and isinstance(step, Slice):
            raise ValueError(
                f"{name} after read(filters=...) is not possible: filters change the number of rows, and {name} acts "
                f"on rows without reading them. To cut first, read without filters, then use .{name}(n).filter(fn)."
            )
        ordered = replace(pipeline, source=replace(rows, steps=(*rows.steps, step)))
        return self._new(replace(self._plan, pipeline=ordered))

    def _rows(self, purpose: str) -> FileRows:
        """The rows of files that this reads; a mixture has none of its own."""
        source = self._plan.pipeline.source
        if isinstance(source, FileRows):
            return source
        raise TypeError(f"{purpose} is not possible on a mixture: use it on each of the data sets before mixing them.")

    def _staged(self, stage: Stage) -> Self:
        pipeline = self._plan.pipeline
        return self._new(replace(self._plan, pipeline=replace(pipeline, stages=(*pipeline.stages, stage))))

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows that are read."""
        return self._rows("schema").schema

    @property
    def column_names(self) -> list[str]:
        """The columns that are read."""
        return self._rows("column_names").names

    @property
    def features(self) -> Features:
        """What `datasets` has written of the columns, such as a ClassLabel's names: ``features["label"].names``."""
        return features_of(self.schema)

    @property
    def epoch(self) -> int:
        """The epoch in which the data set stands."""
        return self._position.now().epoch

    def __len__(self) -> int:
        """How many items this rank gets in a loop, known without reading."""
        plan = self._plan
        if not plan.pipeline.uniform:
            source = "read(filters=...)" if isinstance(plan.pipeline.source, FileRows) else "a mixture"
            what = plan.pipeline.first_uncounted or source
            raise TypeError(f"The length is unknown: only reading the rows tells how many items {what} gives.")
        if plan.passes is None:
            raise TypeError("The length is unknown: repeat() goes on for ever.")
        fresh = plan.begin(State())
        return plan.passes * sum(limit for limit in fresh.limits if limit is not None)

    def __bool__(self) -> bool:
        """True, also where the length is unknown."""
        return True

    def __repr__(self) -> str:
        pipeline = self._plan.pipeline
        told = " → ".join(str(one["op"]) for one in pipeline.describe())
        return f"<midepoch.{type(self).__name__} of {pipeline.source}{told and ': '}{told}>"

    def __iter__(self) -> Iterator[Any]:
        """Go on from where the data set stands."""
        self._position.enter_worker()
        return self._position.run(self._plan, _read_here)

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch; in the epoch in which the data set stands, it stays where it is.

        The next loop gives what is left of that epoch, so loops that count epochs may be resumed anywhere.
        """
        self._position.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the data set stands: what the loop has received, and nothing it has not. Plain values, about 1 KB."""
        return self._position.state_dict(self._plan)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where a state says; whatever does not fit is told, and nothing changes."""
        self._position.load_state_dict(self._plan, state)

    def __getstate__(self) -> dict[str, Any]:
        values = {"plan": self._plan, "state": self._position.now(), "named": self._position.named}
        if self._position.workers is not None and _is_starting_a_process():
            values["workers"] = self._position.workers
        return values

    def __setstate__(self, values: dict[str, Any]) -> None:
        self._plan = values["plan"]
        self._position = Position(values["state"])
        self._position.named = values.get("named")
        self._position.workers = values.get("workers")

    @property
    def __class__(self) -> type:
        # torch asks isinstance(dataset, IterableDataset) before it uses one, which looks here. To register only then
        # means that neither library has to import the other, whichever comes first.
        data = sys.modules.get("torch.utils.data")
        if data is not None and hasattr(data, "IterableDataset"):
            data.IterableDataset.register(Dataset)
            if self._position.workers is None:
                self._position.workers = SharedWithWorkers()
        return type(self)

    @__class__.setter
    def __class__(self, _: type) -> None:
        raise TypeError("A Dataset's class cannot be changed.")


def _read_here(progress: Progress) -> Iterator[Iterable[Any]]:
    read = progress.follow(take_turns(progress))
    return read if torch_worker() is None else (map(standalone, items) for items in read)


def _is_starting_a_process() -> bool:
    """Whether this is pickled for a child process, which alone can be given shared memory."""
    context = sys.modules.get("multiprocessing.context")
    return context is not None and context.get_spawning_popen() is not None
