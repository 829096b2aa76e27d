"""Dataset: what users build. A frozen plan, and the position of its iterations, which is the only thing that changes.

Each method that builds adds to the plan and returns a new dataset. What extensions need of a dataset are the functions
below the class, which ``midepoch.extending`` names.
"""

import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from copy import copy
from dataclasses import replace
from itertools import islice
from numbers import Real
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    NamedTuple,
    Protocol,
    Self,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

import numpy as np
import pyarrow as pa

from midepoch._common import world
from midepoch._common.checks import Size, Version, check_integer, checked_version, count, log_once, parse_size, seed_of
from midepoch._common.files import check_trust
from midepoch.checkpoint.state import State
from midepoch.dataset.as_map import (
    FORM_INSTEAD,
    METHOD_INSTEAD,
    SHORT_FORMS,
    Column,
    MapView,
    arrow_type,
    frames,
    joined,
)
from midepoch.delivery.passes import Pass, PassIterator
from midepoch.delivery.plan import Plan, ShardMode, check_shard, describe_plan
from midepoch.delivery.position import Position, SharedWithWorkers
from midepoch.delivery.reader import take_turns
from midepoch.delivery.trace import predicted_digest
from midepoch.errors import SchemaMismatchError
from midepoch.order.orders import Level, OrderStep, Shuffle, Slice
from midepoch.order.quality import ShuffleQuality
from midepoch.order.selection import Bound, Selection, Slices, TrainTestSplit, slice_bounds
from midepoch.order.windows import WINDOW, WINDOW_BLOCKS, WINDOW_BYTES
from midepoch.pipeline.adopt import without
from midepoch.pipeline.cache import cache_pipeline
from midepoch.pipeline.mixture import Mixture
from midepoch.pipeline.pipeline import Pipeline
from midepoch.pipeline.surveyed import choose_kept_rows, remedy, survey_pipeline, with_own_lengths
from midepoch.sources.files import FileRows
from midepoch.sources.source import Source
from midepoch.stages.batch import Batch
from midepoch.stages.columns import AddColumn, CastColumns, Convert, RenameColumns, Select
from midepoch.stages.flow import WHOLE_LANE
from midepoch.stages.functions import Filter, Map, MapBatches
from midepoch.stages.pack.documents import Others, Overlong, OverlongRow, PackSpec
from midepoch.stages.pack.packs import PackStage
from midepoch.stages.pack.padded import PaddedSpec, TokenBatches
from midepoch.stages.pack.stream import PackStream
from midepoch.stages.pack.windows import PackWindows, Strategy
from midepoch.stages.stage import Stage
from midepoch.storage.named_files import MAX_FILE_BYTES, NamedFiles
from midepoch.values.arrow import standalone
from midepoch.values.columns import FORMS, torch_module
from midepoch.values.features import Features, features_of
from midepoch.values.media import Decode, Decoder, ImageDecoder, checked_size, to_decode
from midepoch.values.video import DecodeVideo

if TYPE_CHECKING:  # type checkers see what isinstance says; nothing is imported for it
    from torch.utils.data import IterableDataset
    from typing_extensions import TypeVar as TypeVarWithDefault

    Item = TypeVarWithDefault("Item", covariant=True, default=Any)

    class Base(IterableDataset[Item], Generic[Item]):
        """What a dataset is for torch."""
else:
    Item = TypeVar("Item", covariant=True)
    Base = Generic

log = logging.getLogger("midepoch")

Row = dict[str, Any]
Names = Sequence[str] | str
Keywords = Mapping[str, Any]
DictForm = Literal["python", "numpy", "torch", "np", "pt", "pytorch"]
ArrowForm = Literal["arrow", "pa", "pyarrow"]
AnyForm = DictForm | ArrowForm
Given = TypeVar("Given")
"""What a function gets."""
Made = TypeVar("Made")
"""What a function returns."""
AnyDataset = TypeVar("AnyDataset", bound="Dataset[Any]")
OfRows = TypeVar("OfRows", bound="Dataset[Row]")
"""A dataset of dicts, of any class, which it keeps: rows and batches are dicts, unless a function or format says so."""


class Table(Protocol):
    """What type checkers know of a record batch: a batch of such is one too."""

    @property
    def columns(self) -> Any:
        """The columns."""


OfTables = TypeVar("OfTables", bound="Dataset[Row | Table]")


class MapOptions(TypedDict, total=False):
    """The options of ``map``, without those that give its function something else than the item."""

    batched: bool
    batch_size: int | None
    drop_last_batch: bool
    one_to_one: bool
    with_rng: bool
    with_indices: bool
    remove_columns: Names | None
    version: Version


class HubDescription(NamedTuple):
    """What a Hugging Face dataset says of itself."""

    info: Callable[[], Any]
    """Returns its ``DatasetInfo``, which may have to be read, and whose class `datasets` has."""
    split: Any


SplitDataset = TypeVar("SplitDataset", bound="Dataset[Any]")


class TrainTest(NamedTuple, Generic[SplitDataset]):
    """The two datasets of a split. They have no row in common, and together all rows."""

    train: SplitDataset
    test: SplitDataset


class Dataset(Base[Item]):
    """Rows of files, in an order, through stages. Lazy: every method below returns a new dataset and reads nothing.

        dataset = midepoch.read("data/*.parquet").shuffle(seed=42).map(tokenize).batch(8)
        for batch in dataset: ...

    A loop starts at the beginning of the epoch, or at the state that ``load_state_dict`` set. After a full loop the
    next one is the next epoch. A loop that is left early changes nothing: the next one starts at the same point.

    ``Item`` is what it yields, for type checkers; a ``Dataset`` without it may yield anything.
    """

    _hub: HubDescription | None = None
    """What a Hugging Face dataset says of itself. Datasets that are derived from it have the same."""
    _bound_to_files = False
    """True in a subclass whose attributes are about its files: ``cache`` then returns a plain Dataset."""

    def __init__(self, plan: Plan) -> None:
        """Start at the beginning of ``plan``, which says what is read and by whom. Users call :func:`midepoch.read`."""
        self._plan, self._position = plan, Position(State())

    @property
    def epoch(self) -> int:
        """The epoch of the next item."""
        return self._position.epoch

    def __len__(self) -> int:
        """How many items this rank gets in one loop in this process, known without reading."""
        return self._plan.length(self._position.epoch)

    @property
    def counted(self) -> bool:
        """True if it is known without reading how many items there are.

        Then the state of any one rank restores all ranks, ``len()`` works, and a Loader gives all ranks the same number
        of steps. :meth:`why_not_counted` says what is missing.
        """
        return self._plan.counted

    def why_not_counted(self) -> str | None:
        """Which stage keeps the items from being counted, and what to do.

            print(midepoch.read("data/*.parquet").filter(lambda row: row["id"] > 7).why_not_counted())

        None if they are counted.
        """
        reason = self._plan.why_not_counted()
        return None if reason is None else f"{reason[0].upper()}{reason[1:]}."

    def __bool__(self) -> bool:
        """True, also if the length is unknown."""
        return True

    def __repr__(self) -> str:
        if "_plan" not in vars(self):  # its constructor has raised, and a debugger shows it
            return object.__repr__(self)
        return describe_plan(f"midepoch.{type(self).__name__}", self._plan, epoch=self.epoch)

    def digest(self, epoch: int = 0) -> int:
        """The digest that an epoch of ``Loader(dataset, digest=True)`` will have at its end. Nothing is read.

            assert loader.digest() == dataset.digest()

        ``epoch`` matters only where epochs differ in what they deliver, as with ``pack`` or ``take`` after a shuffle.
        Packs also depend on the number of lanes: fix it with ``lanes(n)``. Raises if the items are not counted.
        """
        return predicted_digest(self._plan, check_integer("epoch", epoch))

    def head(self, n: int = 5) -> list[Item]:
        """The first ``n`` items of a pass from the start point, to look at.

            print(midepoch.read("data/*.parquet").shuffle(seed=42).head(3))

        No position moves.
        """
        return list(islice(iter(copy(self)), check_integer("n", n)))

    def iter(self, batch_size: int, drop_last_batch: bool = False) -> Iterator[Any]:
        """An iterator over batches of the next loop: that of :meth:`batch`.

            for batch in midepoch.read("data/*.parquet").iter(batch_size=8):
                print(batch["id"])

        ``batch_size`` and ``drop_last_batch`` are those of :meth:`batch`. The iterator's position is not that of the
        dataset.
        """
        return iter(self.batch(batch_size, drop_last_batch))

    def __iter__(self) -> PassIterator[Item]:
        """A pass from the start point: the beginning of the epoch, or the state that was loaded.

        A pass that reaches its end moves the start point to the next epoch. One that is left early does not. Iterators
        are independent of each other, and each has a ``state_dict`` of its own.
        """
        run = self._position.begin(self._plan)
        return PassIterator.over(run, _read_here(run), self._state_of)

    def set_epoch(self, epoch: int) -> None:
        """Start the next loop at the beginning of an epoch. If a state of that epoch was loaded, it starts there.

            for epoch in range(dataset.epoch, 3):
                dataset.set_epoch(epoch)
                for row in dataset:
                    pass

        ``epoch`` counts from 0. The next loop yields what is left of that epoch, so a loop that counts epochs can be
        resumed anywhere. Iterators in other epochs are out of date. Datasets that are made of this one afterwards, by
        ``map``, ``shard`` or ``take``, start at that epoch too.
        """
        self._position.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """What the loop has received, and nothing that it has not. Plain values, about 1 KB.

            torch.save(dataset.state_dict(), "state.pt")

        With several iterators it is the state of the open one that delivered last, else of the last that was left;
        before any, of the start point.
        """
        self._position.check_known()
        return self._state_of(self._position.latest(self._plan))

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Start from a state. If it does not fit, this raises, says what differs, and changes nothing.

            dataset.load_state_dict(state)

        ``state_dict`` is what :meth:`state_dict` returned, in this run or another, or :func:`midepoch.merge_states`
        made of such states. After the state of the last item of an epoch the next loop yields nothing, and the one
        after it is the next epoch. This may be called at any time. Iterators from before are out of date: they raise
        when they are advanced.
        """
        self._position.load_state_dict(self._plan, state_dict)

    def _state_of(self, run: Pass) -> dict[str, Any]:
        """The state of a pass as plain values."""
        return run.plan.pipeline.state_dict(run.state())

    def __getstate__(self) -> dict[str, Any]:
        values = dict(vars(self))
        if world.is_starting_a_process():
            values.pop("_hub", None)  # workers would import `datasets` for it
            values["_workers"] = self._position.workers
        return values

    def __setstate__(self, values: dict[str, Any]) -> None:
        workers = values.pop("_workers", None)
        self.__dict__.update(values)
        self._position = copy(self._position)
        self._position.workers = workers

    @property
    def __class__(self) -> type:
        # A DataLoader asks isinstance(dataset, IterableDataset) before it starts workers, and isinstance looks here.
        # No other hook works with either import order, and none comes before a fork. So torch learns the class here,
        # and the dataset gets the memory that it shares with its copies in workers. To repeat it changes nothing.
        data = sys.modules.get("torch.utils.data")
        if data is not None and hasattr(data, "IterableDataset"):
            data.IterableDataset.register(Dataset)
            if self._position.workers is None:
                self._position.workers = SharedWithWorkers()
        return type(self)

    @__class__.setter
    def __class__(self, _: type) -> None:
        raise TypeError("A Dataset's class cannot be changed.")

    def shuffle(
        self,
        seed: int | None = None,
        *,
        level: Level = "block",
        window: int = WINDOW,
        window_blocks: int = WINDOW_BLOCKS,
        window_bytes: Size = WINDOW_BYTES,
        buffer_size: int | None = None,
        generator: Any = None,
    ) -> Self:
        """Permute the rows, differently in every epoch. The order is a pure function of seed and epoch.

            dataset = midepoch.read("data/*.parquet").shuffle(seed=42)

        ``level="file"`` permutes the files. "block" permutes the blocks of all files (record batches, row groups), and
        then the rows inside windows. A window is a run of permuted blocks: at least ``window`` rows and at least
        ``window_blocks`` blocks, or as many as fit ``window_bytes``, which is a number or a string such as "1GiB". A
        reader holds one window for each of its lanes. Local uncompressed Arrow counts as small virtual blocks of 128
        rows or more, which are read without the rest of their record batch. "row" is a true permutation of all rows in
        constant memory, for memory-mapped Arrow. ``seed`` is an integer; by default it is 0, so that all ranks agree.

        As in `datasets`, ``buffer_size`` is accepted for ``window``, and a ``generator`` of NumPy or torch for the
        seed. A generator must be in the same state on all ranks. With ``buffer_size=0`` only the files are permuted.
        """
        if generator is not None:
            seed = seed_of(generator, seed)
        if buffer_size is not None:
            if window != WINDOW:
                raise ValueError("buffer_size is another name of window. Pass one of them.")
            if check_integer("buffer_size", buffer_size) == 0:
                if level == "row":
                    raise ValueError("level='row' has no buffer: leave out buffer_size, or pass level='file'.")
                level = "file"
            else:
                window = int(buffer_size)
        if level not in ("file", "block", "row"):
            raise ValueError(f"level is {level!r}; it can be 'file', 'block' or 'row'.")
        step = Shuffle(
            seed=0 if seed is None else check_integer("seed", seed, least=None),
            level=level,
            window=check_integer("window", window, least=1),
            window_blocks=check_integer("window_blocks", window_blocks, least=1),
            window_bytes=check_integer("window_bytes", parse_size("window_bytes", window_bytes), least=1),
        )
        shuffled = with_order_step(self, "shuffle", step)
        if level == "file" and len(file_rows(shuffled, "shuffle").index.view.names) == 1:
            log.warning(
                "shuffle(level='file') changes nothing: the dataset is one file. Pass level='block' to mix its rows."
            )
        return shuffled

    def take(self, n: int) -> Self:
        """Keep the first ``n`` rows of the order. No row is read for this.

            sample = midepoch.read("data/*.parquet").take(100)

        After a shuffle these are other rows in every epoch. To separate training from validation, use
        :meth:`train_test_split`.
        """
        return _cut(self, "take", Slice(start=0, stop=check_integer("n", n)))

    def skip(self, n: int) -> Self:
        """Leave out the first ``n`` rows of the order. No row is read for this.

            rest = midepoch.read("data/*.parquet").skip(100)

        After a shuffle these are other rows in every epoch. To separate training from validation, use
        :meth:`train_test_split`.
        """
        return _cut(self, "skip", Slice(start=check_integer("n", n), stop=None))

    def without(self, rows: Any = None, *, steps: Iterable[int] | None = None, of: Any = None) -> Self:
        """Leave rows out. A run that is under way accepts it: what is not delivered yet comes without them.

            dataset = dataset.without([("part-0007.parquet", 1234)])
            dataset = dataset.without(steps=range(41_200, 41_260), of=loader)

        ``rows`` are pairs of a file and a row, or a table of ``Loader.trace``. In a mixture, rows of files that several
        parts have are named by part, file and row. ``steps`` are steps of the present epoch of the Loader ``of``, as
        its ``trace`` counts them, whose rows are left out. Every other row comes exactly once; edits add up. A state
        from before the edit loads, and a log line names the edit; an epoch under way keeps its lanes. Call it after
        everything that acts on the order of rows. Functions, ``batch`` and ``filter`` may come before or after it. If
        windows of packs are under way, their layout stays and the rows are left out of the packs that are left.
        """
        if (rows is None) == (steps is None) or (steps is None) != (of is None):
            raise ValueError("Pass rows=..., or steps=... together with of=loader.")
        if steps is not None:
            rows = pa.concat_tables([of.trace(step) for step in steps])
        return with_plan(self, replace(self._plan, pipeline=without(self._plan.pipeline, rows)))

    def select(self, indices: Iterable[int]) -> Self:
        """Keep the rows at these positions of the order, in the order of ``indices``. No row is read for this.

            chosen = midepoch.read("data/*.parquet").select([5, 3, 99])

        A range with steps of 1 costs nothing; other indices are kept in memory, 8 bytes each. After a shuffle these
        are other rows in every epoch.
        """
        rows = _rows(self, "select")
        if isinstance(indices, range) and indices.step == 1:
            chosen: Any = np.array([indices.start, indices.stop - 1] if indices else [], np.int64)
            step: Slices | Selection = Slices(intervals=((indices.start, max(indices.start, indices.stop)),))
        else:
            chosen = np.fromiter((check_integer("A position in select", one, least=None) for one in indices), np.int64)
            step = Selection(table=pa.table({"indices": chosen}))
        wrong = chosen[(chosen < 0) | (chosen >= rows)]
        if len(wrong):
            raise IndexError(f"select: there is no row {wrong[0]}; the dataset has {count('row', rows)}.")
        return _cut(self, "select", step)

    def slice(self, start: Bound | None = None, stop: Bound | None = None) -> Self:
        """Keep the rows from ``start`` to ``stop`` of the order. No row is read for this.

            validation, train = dataset.slice(stop="10%"), dataset.slice("10%")

        Both are numbers of rows, which count from the end if they are negative, or percents such as "10%" or shares
        such as 0.1, which are rounded to the nearest row. After a shuffle these are other rows in every epoch.
        """
        first, end = slice_bounds(start, stop, _rows(self, "slice"))
        return _cut(self, "slice", Slices(intervals=((first, end),)))

    def train_test_split(self, test_size: int | float, *, seed: int = 0) -> TrainTest[Self]:
        """Two datasets, ``train`` and ``test``, that share no row in any epoch. No row is read for this.

            train, test = midepoch.read("data/*.parquet").train_test_split(0.1, seed=42)
            train = train.shuffle(seed=42)

        ``test_size`` is a number of rows, or a fraction between 0 and 1, which is rounded up to a number of rows. Which
        rows are in ``test`` depends only on ``seed``, the number of rows and their order in the files: never on epoch,
        shuffle, ranks or workers. They come evenly from the whole dataset. Both halves keep the order of rows.

        Raises after a shuffle, which would move rows between the halves from epoch to epoch. Both halves may then be
        shuffled, sharded, mapped, resumed and split again.
        """
        seed = check_integer("seed", seed, least=None)
        if file_rows(self, "train_test_split").shuffled:
            raise ValueError(
                "train_test_split after shuffle is not possible: a shuffle changes with every epoch, so rows would "
                "move between training and test. Split first, then shuffle: train, test = "
                "dataset.train_test_split(...), and then train = train.shuffle(...)."
            )
        size: int | float
        if isinstance(test_size, Real) and not hasattr(test_size, "__index__"):
            size = float(test_size)
            if not 0 < size < 1:
                raise ValueError(
                    f"test_size is {size}; pass a fraction between 0 and 1, such as 0.1, or an integer number of rows."
                )
        else:
            size = check_integer("test_size", test_size)
        train, test = (TrainTestSplit(half=half, test_size=size, seed=seed) for half in ("train", "test"))
        split = TrainTest(*(with_order_step(self, "train_test_split", step) for step in (train, test)))
        rows = sum(file_rows(half, "train_test_split").size for half in split)
        if isinstance(size, int) and size > rows:
            raise ValueError(f"test_size is {size:,}, but the dataset has only {count('row', rows)}.")
        return split

    def shuffle_quality(self, batch_size: int = 512) -> ShuffleQuality:
        """How well the order of the present epoch mixes: how many blocks a batch comes from, and how many it could.

            print(midepoch.read("data/*.parquet").shuffle(seed=42).shuffle_quality())

        No data is read, and the work does not grow with the number of rows: the figures come from a fixed sample of
        batches. A batch is ``batch_size`` consecutive rows of a lane, as they are read: with ``read(filters=...)``,
        before rows are dropped. Lanes are those of :meth:`lanes`, or one for each shard. Raises on a mixture: look at
        each of its datasets.
        """
        batch_size = check_integer("batch_size", batch_size, least=1)
        rows, plan = file_rows(self, "shuffle_quality"), self._plan
        return rows.shuffle_quality(
            epoch=self.epoch, lanes=plan.lanes or plan.ranks, mode=plan.mode, batch_size=batch_size
        )

    @overload
    def map(self: OfRows, function: Callable[..., Mapping[str, Any]], **options: Unpack[MapOptions]) -> OfRows: ...

    @overload
    def map(
        self: "Dataset[Given]", function: Callable[[Given], Made], **options: Unpack[MapOptions]
    ) -> "Dataset[Made]": ...

    @overload
    def map(
        self: "Dataset[Given]",
        function: Callable[[Given, Any], Any] | Callable[[Given, Any, Any], Any],
        **options: Unpack[MapOptions],
    ) -> "Dataset": ...

    @overload
    def map(
        self, function: Callable[..., Any], *, input_columns: Names, **options: Unpack[MapOptions]
    ) -> "Dataset": ...

    @overload
    def map(
        self,
        function: Callable[..., Any],
        *,
        fn_kwargs: Keywords,
        input_columns: Names | None = None,
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
        call = self._plan.pipeline.call(
            "map",
            function,
            with_rng=with_rng,
            with_indices=with_indices,
            input_columns=input_columns,
            fn_kwargs=fn_kwargs,
            version=checked_version(version),
        )
        size = _group_size(batch_size)
        if one_to_one and not batched:
            raise ValueError(
                "one_to_one=True is for batched=True. Without that, a function returns one row for each anyway."
            )
        if drop_last_batch and (one_to_one or not batched):
            raise ValueError("drop_last_batch=True is for batched=True, and not for one_to_one=True, which keeps all.")
        if not batched:
            return with_stage(self, Map(call=call, remove_columns=removed))
        drop_last = drop_last_batch and size != WHOLE_LANE
        stage = MapBatches(call=call, size=size, one_to_one=one_to_one, drop_last=drop_last, remove_columns=removed)
        return with_stage(self, stage)

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
        call = self._plan.pipeline.call(
            "filter",
            function,
            with_indices=with_indices,
            input_columns=input_columns,
            fn_kwargs=fn_kwargs,
            version=checked_version(version),
        )
        return with_stage(self, Filter(call=call, size=_group_size(batch_size) if batched else None))

    @overload
    def batch(self: OfTables, batch_size: int, drop_last_batch: bool = False) -> OfTables: ...

    @overload
    def batch(self, batch_size: int, drop_last_batch: bool = False) -> "Dataset": ...

    def batch(self, batch_size: int, drop_last_batch: bool = False) -> Any:
        """Make one item of several, a dict of columns.

            dataset = midepoch.read("data/*.parquet").shuffle(seed=42).batch(32)

        ``batch_size`` is the number of items in a batch, at least 1. The last batch of a lane may be smaller; with
        ``drop_last_batch=True`` it is left out then.
        """
        return with_stage(self, Batch(size=check_integer("batch_size", batch_size, least=1), drop_last=drop_last_batch))

    def pack(
        self: OfRows,
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
    ) -> OfRows:
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
        spec = PackSpec(
            length=check_integer("length", length, least=None),
            column=column,
            overlong=overlong,
            eos=None if eos is None else check_integer("eos", eos, least=None),
            pad=None if pad is None else check_integer("pad", pad, least=None),
            labels=labels,
            others=others,
            number=len(self._plan.pipeline.stages) + 1,
        )
        if strategy == "concat":
            return _packed(self, PackStream(spec=spec))
        return _packed(self, PackWindows(spec=spec, strategy=strategy, window=check_integer("window", window)))

    def batch_by_tokens(
        self: OfRows,
        max_tokens: int,
        *,
        column: str = "input_ids",
        window: int = 1024,
        pad: float | Mapping[str, float] = 0,
        max_rows: int | None = None,
        multiple_of: int = 1,
        overlong: OverlongRow = "error",
    ) -> OfRows:
        """Make padded batches of whole rows of about the same length, with at most ``max_tokens`` places.

            rows = midepoch.read("data/*.parquet").shuffle(seed=42).map(tokenize)
            batches = rows.batch_by_tokens(32_768, pad={"input_ids": 0, "labels": -100})

        A batch has as many rows, of at most ``max_rows``, as fit if each is padded to the longest, rounded up to
        ``multiple_of``. The rows of a window of ``window`` rows are grouped by the length of ``column``, a list of
        integers. The batches of a window come in a shuffled order. Rows without tokens are left out. A row that is
        longer than ``max_tokens`` is an "error"; with ``overlong`` "drop" it is left out, "cut" makes several rows of
        it, and "alone" puts it into a longer batch of its own.

        A batch is a dict of arrays, or of tensors after ``with_format("torch")``: the padded columns,
        ``attention_mask``, which is 1 where a row has a token, and ``lengths``. ``pad`` is the value for ``column``, or
        a dict with the value of each column that is padded along the tokens. ``token_type_ids`` and columns whose names
        end in "mask" are padded with 0. Other columns are arrays of numbers, or lists.

        Batches are counted like packs: once the rows are surveyed. A Loader takes them as they are, without a batch
        size; ``micro_batch_size=1`` is one of them.
        """
        most, multiple = check_integer("max_tokens", max_tokens), check_integer("multiple_of", multiple_of, least=1)
        pads = {column: 0} | dict(pad) if isinstance(pad, Mapping) else {column: pad}
        spec = PaddedSpec(
            length=most // multiple * multiple,
            column=column,
            overlong=overlong,
            eos=None,
            pad=None,
            labels=None,
            number=len(self._plan.pipeline.stages) + 1,
            max_tokens=most,
            max_rows=None if max_rows is None else check_integer("max_rows", max_rows, least=1),
            multiple_of=multiple,
            pads=tuple(pads.items()),
        )
        return _packed(self, TokenBatches(spec=spec, window=check_integer("window", window)))

    @overload
    def with_format(self: OfRows, type: DictForm | None = None) -> OfRows: ...

    @overload
    def with_format(self, type: DictForm | None = None) -> "Dataset": ...

    @overload
    def with_format(self, type: ArrowForm) -> "Dataset[pa.RecordBatch]": ...

    def with_format(self, type: AnyForm | None = None) -> Any:
        """Yield "python", "numpy" or "torch" values, or Arrow record batches ("arrow"), from this stage on.

            dataset = midepoch.read("data/*.parquet", columns=["x"]).with_format("torch").batch(32)

        ``type`` is one of these names; None is "python". The short names of `datasets` are known too: "np", "pt",
        "pytorch", "pa" and "pyarrow". For pandas, polars and jax convert a batch: ``batch.to_pandas()`` and
        ``polars.from_arrow(batch)`` take batches of "arrow", ``jax.numpy.asarray(...)`` takes arrays of "numpy".
        """
        form: Any = SHORT_FORMS.get(type, type)
        if form not in FORMS:
            instead = f" {FORM_INSTEAD[form]}." if form in FORM_INSTEAD else ""
            raise ValueError(f"The format is {type!r}; it can be {', '.join(map(repr, FORMS))}.{instead}")
        if form == "torch":
            torch_module()
        return with_stage(self, Convert(form=form))

    def decode(
        self,
        *columns: str,
        decoder: Decoder = "pillow",
        size: int | Sequence[int] | None = None,
        video: Names | None = None,
        at: str | None = None,
        frames: str | int | None = None,
        data_folder: str | os.PathLike[str] | None = None,
        allow_urls: Iterable[str] = (),
        max_file_bytes: Size = MAX_FILE_BYTES,
        storage_options: Mapping[str, Any] | None = None,
        allow_pickle: bool = False,
    ) -> Self:
        """Decode images to PIL images, audio and videos to arrays, in the process that reads the rows.

            pictures = midepoch.read("pictures.parquet").decode("picture")

        ``columns`` are names, or kinds: "image", "audio", "video", and of tar files "json", "text", "integer" and
        "array". By default all features of these kinds are decoded, and the columns of tar files by their extensions.
        Without ``decode`` they stay bytes. Needs ``midepoch[image]``, ``midepoch[audio]`` or ``midepoch[video]``.

        ``decoder="turbo"`` gives images as arrays of bytes, (height, width, 3), and decodes JPEG files about twice as
        fast, by libjpeg-turbo; Pillow decodes the others. Needs ``midepoch[jpeg]``, and torch with a ``size``. With
        ``size``, a number of pixels or a pair of height and width, all images are resized to it, without keeping their
        proportions. Both are part of a state, because they change pixels.

            arrays = midepoch.read("pictures.parquet").decode("picture", decoder="turbo", size=224)

        ``video`` names columns with videos: bytes, or names of files. In their place come the frames at the times in
        seconds that the column ``at`` has: of one time an array of bytes (height, width, 3), of a list one axis more.
        ``frames`` is a column of frame numbers instead, or how many evenly spaced frames to take. Nothing is decoded
        before the key frame that a frame needs. PyAV decodes, or for many frames torchcodec where it is installed: the
        same frames.

            episodes = midepoch.read("episodes.parquet").decode(video="camera", at="timestamp", data_folder=".")

        Most datasets hold the bytes of their files. Rows may also name regular files in ``data_folder``, which can be
        the URL of an object store, and URLs of the origins in ``allow_urls``, such as "https://example.com". Each has
        at most ``max_file_bytes``. ``storage_options`` are those of the folder's store. With ``allow_pickle=True``,
        pickled columns of MDS files are decoded too: that runs whatever code their writer put there.
        """
        pipeline = self._plan.pipeline
        if (resizing := pipeline.first_resizing) is not None:
            raise ValueError(f"decode after {resizing} is not possible: it works on single rows. Put decode first.")
        files = NamedFiles(
            data_folder, allow_urls=allow_urls, max_file_bytes=max_file_bytes, storage_options=storage_options
        )
        dataset = self
        is_of_video = (video, at, frames) != (None, None, None)
        if columns or not is_of_video:
            images = ImageDecoder(decoder=decoder, size=checked_size(size))
            features = to_decode(self.schema, features_of(self.schema), columns, allow_pickle=allow_pickle)
            function = Decode(features=features, files=files, images=images)
            dataset = with_stage(self, Map(call=pipeline.call("decode", function), parameters=images.describe()))
        if is_of_video:
            names = (video,) if isinstance(video, str) else tuple(video or ())
            of_video = DecodeVideo(columns=names, at=at, frames=frames, files=files)
            call = plan_of(dataset).pipeline.call("decode", of_video)
            dataset = with_stage(dataset, Map(call=call, parameters=of_video.describe()))
        return dataset

    def select_columns(self, names: Sequence[str] | str) -> Self:
        """Keep these columns.

            dataset = midepoch.read("data/*.parquet").select_columns(["id", "text"])

        ``names`` is the name of a column, or a list of names, in the order that items will have. None may come twice.
        Directly after ``read`` the others are never read from the files, and a name that is unknown raises.
        """
        chosen = (names,) if isinstance(names, str) else tuple(names)
        if len(set(chosen)) < len(chosen):
            raise ValueError(f"select_columns names a column twice: {list(chosen)}.")
        pipeline, rows = self._plan.pipeline, self._plan.pipeline.source
        if isinstance(rows, FileRows) and pipeline.keeps_rows:
            missing = [name for name in chosen if name not in rows.names]
            if missing:
                raise SchemaMismatchError(f"There is no column {missing[0]!r}. There are: {', '.join(rows.names)}.")
            selected = replace(pipeline, source=replace(rows, columns=chosen))
            return with_plan(self, replace(self._plan, pipeline=selected))
        return with_stage(self, Select(names=chosen))

    def remove_columns(self, column_names: Sequence[str] | str) -> Self:
        """Leave out these columns, from this stage on.

            dataset = midepoch.read("data/*.parquet").remove_columns(["x"])

        ``column_names`` is the name of a column, or a list of names; one that is unknown raises. To read fewer columns,
        use ``read(columns=...)``.
        """
        names = (column_names,) if isinstance(column_names, str) else tuple(column_names)
        return _renamed(self, "remove_columns", dict.fromkeys(names))

    def rename_column(self, original_column_name: str, new_column_name: str) -> Self:
        """Give a column another name.

            dataset = midepoch.read("data/*.parquet").rename_column("text", "document")

        The column ``original_column_name``, which must exist, is named ``new_column_name`` from this stage on. No other
        column may have that name.
        """
        return _renamed(self, "rename_column", {original_column_name: new_column_name})

    def rename_columns(self, column_mapping: Mapping[str, str]) -> Self:
        """Give columns other names.

            dataset = midepoch.read("data/*.parquet").rename_columns({"text": "document", "x": "value"})

        ``column_mapping`` is a dict of old and new names, which hold from this stage on. Each old name must exist, and
        no two columns may end up with the same name.
        """
        return _renamed(self, "rename_columns", column_mapping)

    def cast(self, features: pa.Schema | Mapping[str, Any]) -> Self:
        """Give columns other types, from this stage on.

            dataset.cast({"id": "int32", "score": pyarrow.float32()})

        ``features`` is a ``pyarrow.Schema`` or a dict: a name, and a pyarrow type, the name of one, or a feature of
        `datasets`. Columns that it does not name stay as they are. A value that does not fit its new type raises. Types
        of files that differ from file to file are for ``read(schema=...)``.
        """
        if isinstance(features, pa.Schema):
            features = {field.name: field.type for field in features}
        return _retyped(self, "cast", features)

    def cast_column(self, column: str, feature: Any) -> Self:
        """Give a column another type, from this stage on.

            dataset = midepoch.read("data/*.parquet").cast_column("x", "float32")

        ``column`` is its name. ``feature`` is a pyarrow type, the name of one, or a feature of `datasets` that is a
        plain type. A value that does not fit its new type raises.
        """
        return _retyped(self, "cast_column", {column: feature})

    def add_column(self, name: str, column: Any) -> Self:
        """Add a column that is in memory.

            dataset = midepoch.read("data/*.parquet")
            dataset = dataset.add_column("weight", numpy.ones(len(dataset))).shuffle(seed=42)

        ``name`` must be new. ``column`` is a list or an array with a value for each row of the files, in their order. A
        row keeps its value under any later shuffle, shard or resume. Put it before methods that choose or order rows.
        Values that follow from the row itself are made by a ``map``.
        """
        rows = file_rows(self, "add_column")
        self._plan.pipeline.check_row_numbers("add_column")
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
        return with_stage(self, AddColumn.of(name, values))

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows as they are read from the files."""
        return file_rows(self, "schema").schema

    @property
    def column_names(self) -> list[str] | None:
        """The columns of the items. None after a function, because only reading tells what it returns."""
        known = self._plan.pipeline.item_schema
        return None if known is None else list(known.names)

    @property
    def features(self) -> Features | None:
        """The features that `datasets` stored in the files, for example ``features["label"].names`` of a ClassLabel.

        They are those of the present columns; other columns are Values of their Arrow type. None after a function, as
        for :attr:`column_names`.
        """
        known = self._plan.pipeline.item_schema
        return None if known is None else features_of(known)

    @property
    def info(self) -> Any:
        """The ``DatasetInfo`` of a Hugging Face dataset, as it was opened. Other datasets have none."""
        return _hub(self, "info").info()

    @property
    def split(self) -> Any:
        """The split of a Hugging Face dataset, such as "train" or "train[:90%]". Other datasets have none."""
        return _hub(self, "split").split

    @property
    def num_shards(self) -> int:
        """The number of files. Any number of ranks and workers shares their rows, also more than there are files."""
        return _file_count(self._plan.pipeline)

    n_shards = num_shards
    """Another name of :attr:`num_shards`."""

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
            hint = METHOD_INSTEAD.get(name)
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
        size = check_integer("batch_size", 1000 if batch_size is None else batch_size, least=1)
        parts = frames(_one_epoch(self, self.epoch), size, of_batches=self._plan.pipeline.item_spec[1])
        return parts if batched else joined(parts, self.column_names)

    def shard(
        self,
        num_shards: int | None = None,
        index: int | None = None,
        mode: Literal["auto", "file", "example"] = "auto",
        *,
        contiguous: bool | None = None,
        mesh: world.Mesh | None = None,
        dim: str | Sequence[str] | None = None,
        dp_rank: int | None = None,
        dp_world_size: int | None = None,
    ) -> Self:
        """Keep the shard of rank ``index`` of ``num_shards``. Shards are disjoint and together complete.

            mine = midepoch.read("data/*.parquet").shuffle(seed=42).shard(num_shards=8, index=3)

        Without arguments both come from ``torch.distributed`` or the launcher's environment; a process that was started
        without a launcher reads everything. With a ``mesh``, a DeviceMesh of torch, they come from the dimensions that
        ``dim`` names, such as ``("dp_replicate", "dp_shard")``: tensor-, context- and pipeline-parallel peers read the
        same rows. ``dp_rank`` and ``dp_world_size`` are other names for ``index`` and ``num_shards``.

        ``mode="example"`` cuts the rows evenly; "auto" is the same. "file" gives each rank whole files, so shards may
        differ in size. As in `datasets`, ``contiguous=True`` gives the shard a run of consecutive rows, with any number
        of workers, and ``contiguous=False`` every ``num_shards``-th row. Both fix the number of :meth:`lanes`.
        Shards share items: with ``contiguous=False`` and :meth:`batch`, a shard has every ``num_shards``-th batch. By
        default each worker of each rank reads a run of its own, which costs least.

        A shard of a shard is a part of it. The shard that some datasets take from the launcher by themselves is
        replaced instead: ``shard(1, 0)`` lets every rank read everything.
        """
        if mode not in ("auto", "file", "example"):
            keyword = f" For contiguous, write contiguous={mode!r}." if isinstance(mode, bool) else ""
            raise ValueError(f"mode is {mode!r}; it can be 'auto', 'file' or 'example'.{keyword}")
        if dim is not None and mesh is None:
            raise ValueError("dim= names dimensions of a mesh: pass mesh= too.")
        given = [pair for pair in ((num_shards, index), (dp_world_size, dp_rank)) if pair != (None, None)]
        given += [] if mesh is None else [world.mesh_shard(mesh, dim)]
        if len(given) > 1:
            raise ValueError("Pass one of num_shards and index, dp_world_size and dp_rank, or mesh.")
        ranks, rank = _both(*given[0]) if given else _launched_shard()
        plan = self._plan
        if plan.sharded_by == "launcher":
            plan = replace(plan, ranks=1, rank=0, sharded_by=None)
        shard_mode: ShardMode = "file" if mode == "file" else "example"
        lanes = plan.lanes if contiguous is None else _lanes_of_shards(plan, shard_mode, ranks, contiguous=contiguous)
        ranks, rank = plan.ranks * ranks, plan.rank + plan.ranks * rank
        return with_plan(self, replace(plan, ranks=ranks, rank=rank, mode=shard_mode, lanes=lanes, sharded_by="user"))

    def lanes(self, n: int) -> Self:
        """Cut every epoch into ``n`` lanes.

            dataset = midepoch.read("data/*.parquet").shuffle(seed=42).lanes(64)

        Runs with the same lanes have the same order on any number of readers.
        """
        return with_plan(self, replace(self._plan, lanes=check_integer("n", n, least=1)))

    def repeat(self, num_times: int | None = None) -> Self:
        """Let one loop run through ``num_times`` epochs, or forever. With 0 it yields nothing.

            three_epochs = midepoch.read("data/*.parquet").shuffle(seed=42).repeat(3)

        Each epoch has its own shuffle.
        """
        epochs = None if num_times is None else check_integer("num_times", num_times)
        return with_plan(self, replace(self._plan, epochs_per_loop=epochs))

    def survey(
        self,
        *,
        executor: Executor | None = None,
        version: str | int | None = None,
        folder: str | os.PathLike[str] | None = None,
        trust_shared: bool = False,
    ) -> Self:
        """Find out once which rows the filters keep and how long the rows are that ``pack`` gets.

            dataset = midepoch.read("data/*.parquet").map(tokenize).filter(long_enough).pack(2048).survey()

        All rows are read once, in file order, through the stages up to the last ``filter`` or ``pack``. What these make
        of each row is kept in a file beside the index, or in ``folder``. Then the number of items is known without
        reading. Items, their order and states are the same with and without a survey. The next call with the same data
        and stages finds it. A call that was killed continues where it was. ``shuffle``, ``take``, ``skip`` and
        ``train_test_split`` may come after it, and act on the rows that the filters keep.

        If only columns of the files are needed, no function is called: ``pack`` of lists in Arrow files reads their
        offsets, in Parquet that one column, and ``read(filters=...)`` the columns of the filter. ``map(batched=True)``
        without ``one_to_one`` cannot be surveyed.

        ``executor`` is any ``concurrent.futures.Executor``; by default as many processes are started as there are
        cores. A survey belongs to the data, the stages, and the names and plain arguments of their functions. If
        something else about a function changes, pass another ``version``, here or to :meth:`map` or :meth:`filter`. On
        several machines, pass a ``folder`` that they share, or call this on each of them. Surveys of other users are
        used only with ``trust_shared=True``, as in :func:`midepoch.read`.
        """
        pipeline = survey_pipeline(
            self._plan.pipeline,
            executor=executor,
            version=checked_version(version),
            folder=None if folder is None else Path(folder),
            trust_shared=check_trust(trust_shared),
        )
        if pipeline is self._plan.pipeline:
            log.info("There is nothing to survey: the number of items is known already.")
            return self
        return with_plan(self, replace(self._plan, pipeline=pipeline))

    def cache(
        self,
        folder: str | os.PathLike[str],
        *,
        executor: Executor | None = None,
        version: str | int | None = None,
        trust_shared: bool = False,
    ) -> "Dataset[Item]":
        """Make all rows once, in parallel, and read them from Arrow files in ``folder`` from then on.

            tokens = midepoch.read("data/*.parquet").map(tokenize).filter(long_enough).cache("tokens")
            packs = tokens.shuffle(seed=42).pack(2048)

        All stages so far are done, and so are ``take``, ``skip`` and ``train_test_split`` before a shuffle. A shuffle,
        shards and lanes act on the cached rows. ``batch``, ``pack`` and functions ``with_rng`` come after. Values are
        those of Arrow: arrays come back as lists, or as arrays after ``with_format``; lists of Python integers are
        stored as int32 if they fit.

        If the folder has the cache already, nothing is done. A call that was killed continues with the files that are
        missing. A folder with a cache of other data, stages, function names, plain arguments or ``version`` is refused.
        If something else about a function changes, pass another folder, and another ``version`` here or to :meth:`map`
        or :meth:`filter`. ``executor`` is any ``concurrent.futures.Executor``; by default as many processes are started
        as there are cores. A folder with files of other users is refused, unless ``trust_shared=True``: they could have
        any rows.
        """
        pipeline = cache_pipeline(
            self._plan.pipeline,
            Path(folder).expanduser(),
            executor=executor,
            version=checked_version(version),
            trust_shared=check_trust(trust_shared),
        )
        cached = with_plan(self, replace(self._plan, pipeline=pipeline))
        if not self._bound_to_files:
            return cached
        plain = Dataset[Item](cached._plan)
        plain._position, plain._hub = cached._position, cached._hub
        return plain

    def as_map(self) -> MapView[Item]:
        """The items of the present epoch by position, for trainers that index: ``len(view)``, ``view[5]``.

            view = midepoch.read("data/*.parquet").map(tokenize).as_map()
            loader = DataLoader(view, batch_size=8, sampler=view.sampler(seed=42))

        It needs a dataset whose items are counted. Positions are those of one process, without shards and lanes; let
        the trainer's sampler choose among them, or ``view.sampler``, which shuffles, shards and resumes.
        """
        if (reason := self.why_not_counted()) is not None:
            raise ValueError(f"as_map needs a dataset whose number of items is known. {reason}")
        if self._plan.sharded_by == "user":
            raise ValueError("as_map after shard is not possible: it has all items. Pass num_shards to its sampler.")
        return MapView(self._plan, self.epoch)


def plan_of(dataset: Dataset[Any]) -> Plan:
    """What a dataset reads, and as which rank: a frozen plan."""
    return dataset._plan


def position_of(dataset: Dataset[Any]) -> Position:
    """Where the next pass of a dataset starts, and which pass delivered last. A Loader has a position of its own."""
    return dataset._position


def from_source(source: Source, kind: type[AnyDataset], hub: HubDescription | None = None) -> AnyDataset:
    """A dataset of a source's items, of the class ``kind``, whose own ``__init__`` is not called."""
    made = object.__new__(kind)
    Dataset.__init__(made, Plan(pipeline=Pipeline(source=source)))
    if hub is not None:
        made._hub = hub
    return made


def with_plan(dataset: AnyDataset, plan: Plan) -> AnyDataset:
    """A dataset of the same class at the beginning of another plan. Every method that builds ends here.

    It starts at the epoch that ``set_epoch`` named, if any, and has the attributes of ``dataset``.
    """
    made = object.__new__(type(dataset))
    made.__dict__.update(vars(dataset))
    made._plan, made._position = plan, dataset._position.for_derived()
    return made


def with_stage(dataset: AnyDataset, stage: Stage) -> AnyDataset:
    """Add a last stage to the pipeline."""
    plan = dataset._plan
    return with_plan(dataset, replace(plan, pipeline=plan.pipeline.with_stages(stage)))


def _packed(dataset: AnyDataset, stage: PackStage) -> AnyDataset:
    """The dataset with a stage that packs its rows, and with the lengths of these, if files have them."""
    pipeline, name = plan_of(dataset).pipeline, stage.name
    if pipeline.item_spec[1]:
        raise ValueError(f"{name} after batch is not possible: it packs rows, not batches of them. Put {name} first.")
    if pipeline.schema is not None:
        stage.spec.check_schema(pipeline.schema)
    packed = with_stage(dataset, stage)
    return with_plan(packed, replace(plan_of(packed), pipeline=with_own_lengths(plan_of(packed).pipeline)))


def file_rows(dataset: Dataset[Any], purpose: str) -> FileRows:
    """The source: the index, columns and order of files. Raises on a mixture; ``purpose`` is for the message."""
    return _file_rows(dataset._plan.pipeline, purpose)


def with_order_step(dataset: AnyDataset, name: str, step: OrderStep) -> AnyDataset:
    """Add a last step to the order of rows; ``name`` is for messages.

    The step permutes or selects rows that nobody has read yet. After filters that a survey covers, these are the rows
    that the filters keep. This raises after any other stage that changes the number of items.
    """
    plan = dataset._plan
    if plan.sharded_by == "user" and isinstance(step, Slice | Slices | Selection):
        raise ValueError(
            f"{name} after shard is not possible: {name} acts on the rows of all shards. A number of rows for each "
            f"shard would have no meaning after a resize. Put it first: dataset.{name}(n).shard(...)."
        )
    pipeline = choose_kept_rows(plan.pipeline)
    resizing = pipeline.first_resizing
    if resizing is not None:
        raise ValueError(
            f"{name} after {resizing} is not possible: {resizing} changes the number of items, and {name} acts on "
            f"rows without reading them. {remedy(pipeline, name)}"
        )
    rows = _file_rows(pipeline, name)
    if not rows.uniform and isinstance(step, Slice | Slices | Selection | TrainTestSplit):
        raise ValueError(
            f"{name} after read(filters=...) is not possible: filters change the number of rows, and {name} acts "
            f"on rows without reading them. {remedy(pipeline, name)} To put it first, read without filters, use "
            f".{name}(n), and then .filter(fn)."
        )
    pipeline = replace(pipeline, source=replace(rows, steps=(*rows.steps, step)))
    return with_plan(dataset, replace(plan, pipeline=pipeline))


def with_launched_shard(dataset: AnyDataset) -> AnyDataset:
    """The shard of the rank that was launched, unless a shard was chosen. A later ``shard`` replaces it.

    For front doors whose datasets are sharded by themselves. Outside of a launcher the dataset stays complete.
    """
    launched, plan = world.launched_rank(), dataset._plan
    is_chosen = plan.sharded_by == "user" or (plan.sharded_by is None and plan.ranks > 1)
    if launched is None or is_chosen:
        return dataset
    rank, ranks = launched
    return with_plan(dataset, replace(plan, ranks=ranks, rank=rank, sharded_by="launcher"))


def _hub(dataset: Dataset[Any], name: str) -> HubDescription:
    if dataset._hub is None:
        raise AttributeError(name)  # then __getattr__ is asked, and says what is wrong
    return dataset._hub


def _file_rows(pipeline: Pipeline, purpose: str) -> FileRows:
    if isinstance(pipeline.source, FileRows):
        return pipeline.source
    raise TypeError(f"{purpose} is not possible on a mixture: use it on each of the datasets before mixing them.")


def _read_here(run: Pass) -> Iterator[Iterable[Any]]:
    with run:
        for progress in run.epochs():
            in_bulk = run.deliver(take_turns(progress))
            yield from in_bulk if world.torch_worker() is None else (map(standalone, items) for items in in_bulk)


def _cut(dataset: AnyDataset, name: str, step: OrderStep) -> AnyDataset:
    """Add a step that keeps some of the rows. Warn that these differ from epoch to epoch after a shuffle."""
    cut = with_order_step(dataset, name, step)
    if any(source.shuffled for source in cut._plan.pipeline.files):
        log_once(
            "take, skip and select after shuffle choose other rows in every epoch. That is a way to sample, but "
            "not to separate training from validation: rows would move between the two. For that, use "
            "dataset.train_test_split(...) before shuffle."
        )
    return cut


def _rows(dataset: Dataset[Any], name: str) -> int:
    """The number of rows among which a method chooses."""
    return file_rows(with_order_step(dataset, name, Slice(start=0, stop=None)), name).size


def _one_epoch(dataset: AnyDataset, epoch: int) -> AnyDataset:
    """The items of an epoch with a position of their own, and no epoch after it."""
    alone = with_plan(dataset, replace(dataset._plan, epochs_per_loop=1))
    alone.set_epoch(epoch)
    return alone


def _renamed(dataset: AnyDataset, name: str, names: Mapping[str, str | None]) -> AnyDataset:
    stage = RenameColumns(name=name, names=tuple(names.items()))
    _ = stage.item_schema(dataset._plan.pipeline.item_schema)  # raises now if a column is known to be missing
    return with_stage(dataset, stage)


def _group_size(batch_size: int | None) -> int:
    """How many items a batched function gets at a time. None and -1 are all items of a lane, as in `datasets`."""
    return WHOLE_LANE if batch_size is None or batch_size == -1 else batch_size


def _retyped(dataset: AnyDataset, name: str, types: Mapping[str, Any]) -> AnyDataset:
    stage = CastColumns(name=name, types=tuple((column, arrow_type(name, wanted)) for column, wanted in types.items()))
    _ = stage.item_schema(dataset._plan.pipeline.item_schema)
    return with_stage(dataset, stage)


def _file_count(pipeline: Pipeline) -> int:
    source = pipeline.source
    if isinstance(source, Mixture):
        return sum(map(_file_count, source.parts))
    assert isinstance(source, FileRows)
    return len(source.index.view.names)


def _both(num_shards: int | None, index: int | None) -> tuple[int, int]:
    if num_shards is None or index is None:
        raise ValueError("Pass both num_shards and index, or neither.")
    return check_shard(num_shards, index)


def _lanes_of_shards(plan: Plan, mode: ShardMode, shards: int, *, contiguous: bool) -> int:
    """The lanes with which a shard is a run of rows: one for each. With one lane, shards take its rows in turns."""
    if not isinstance(contiguous, bool):
        raise TypeError(f"contiguous must be True or False, got {contiguous!r}.")
    if mode == "file":
        raise ValueError("contiguous= says which rows a shard has, and mode='file' which files. Leave out one of them.")
    if plan.ranks == 1 and plan.lanes is not None:
        raise ValueError(f"contiguous= fixes the number of lanes, and lanes({plan.lanes}) has. Leave out one of them.")
    if not contiguous:
        return plan.lanes or plan.ranks
    if plan.ranks > 1:
        raise ValueError(
            "shard(contiguous=True) of a shard is not possible. Cut once, into as many shards as there are in all: "
            f"shard({plan.ranks * shards}, index, contiguous=True)."
        )
    return shards


def _launched_shard() -> tuple[int, int]:
    launched = world.launched_rank()
    if launched is not None:
        return launched[1], launched[0]
    if (unfinished := world.unfinished_launch()) is not None:
        raise ValueError(
            f"shard() does not know its rank: {unfinished}. Start with torchrun, initialise torch.distributed first, "
            "or pass num_shards and index."
        )
    return 1, 0
