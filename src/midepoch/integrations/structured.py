"""StructuredDataset: structured files, local or in an object store, with a DataLoader in one call.

Files are cut into splits, which a shuffle permutes and states name. The order of an epoch is a sequence of *groups*:
one split, or several small ones whose rows a shuffle mixes. How many rows of a group are delivered follows from the
positions of the lanes alone, and a split is done when all rows of its group are, in whichever lanes they are.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

import numpy as np

from midepoch._common.checks import check_choice, check_integer, options_among, parse_size
from midepoch._common.hashing import I64, key_of
from midepoch.checkpoint.fingerprint import FileFacts, data_fingerprint
from midepoch.checkpoint.lanes import LaneAssignment, LanePosition, lane_cuts
from midepoch.checkpoint.state import MOST_APPENDED, LanePositions, State, check_scale, checked_state
from midepoch.dataset import Dataset, file_rows, plan_of, position_of, with_launched_shard, with_order_step
from midepoch.dataset.read import ReadOptions
from midepoch.delivery.passes import Pass
from midepoch.delivery.plan import Plan
from midepoch.errors import CheckpointMismatchError
from midepoch.extending import FrontDoor
from midepoch.formats import file_suffixes
from midepoch.index.index import IndexView
from midepoch.order.orders import Order, Shuffle, ShuffledPieces, ShuffledWindows, build_order
from midepoch.order.selection import Deletes
from midepoch.order.windows import WINDOW, distinct, windows_of_rows
from midepoch.pipeline.pipeline import Pipeline
from midepoch.sources.files import FileRows
from midepoch.sources.lane import generations, ranges_of
from midepoch.storage.listing import PathSpec

if TYPE_CHECKING:
    from midepoch.integrations.structured_loader import StructuredLoader

BATCH_ROWS = 1024
"""The rows of a batch, by default."""
REPORTED_LANES = 16
REPORTED_SPLITS = 32
REPORTED_OF_GROUP = 4
OutputFormat = Literal["torch", "numpy", "arrow", "dict"]


@dataclass(frozen=True, kw_only=True)
class TableOptions(ReadOptions):
    """How files are opened, and in which order, shard and format their rows come. Wrong values raise at once."""

    shuffle: bool = False
    shuffle_seed: int = 42
    shuffle_buffer_size: int | None = None
    split_bytes: int | str | None = "128MiB"
    split_rows: int | None = None
    output_format: OutputFormat = "dict"
    num_ranks: int | None = None
    rank: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("output_format", self.output_format, get_args(OutputFormat))
        _ = self.split_sizes
        check_integer("shuffle_seed", self.shuffle_seed, least=None)
        if self.shuffle_buffer_size is not None:
            check_integer("shuffle_buffer_size", self.shuffle_buffer_size)

    @property
    def split_sizes(self) -> dict[str, int]:
        """The most rows or bytes of a split; nothing if a split is a whole file."""
        if self.split_rows is not None:
            return {"most_rows": check_integer("split_rows", self.split_rows, least=1)}
        if self.split_bytes is None:
            return {}
        return {"most_bytes": check_integer("split_bytes", parse_size("split_bytes", self.split_bytes), least=1)}

    @property
    def seed(self) -> int | None:
        """The seed of the shuffle; None without one."""
        return int(self.shuffle_seed) if self.shuffle or self.shuffle_buffer_size else None

    def arrange(self, rows: Dataset, splitting: "Splitting") -> Dataset:
        """Shuffle rows, keep the shard of this rank, and convert to the output format, as far as asked for."""
        if self.seed is not None:
            window = WINDOW if self.shuffle_buffer_size is None else int(self.shuffle_buffer_size)
            step = ShuffleSplits(seed=self.seed, window=window, splitting=splitting, permutes=self.shuffle)
            rows = with_order_step(rows, "shuffle", step)
        rows = own_shard(rows, self.rank, self.num_ranks)
        return rows if self.output_format == "dict" else rows.with_format(self.output_format)


def own_shard(rows: Dataset, rank: int | None, ranks: int | None) -> Dataset:
    """The rows of a rank, by default of the one that ``torch.distributed`` or the launcher's environment names."""
    if rank is None and ranks is None:
        return with_launched_shard(rows)
    if rank is None or ranks is None:
        raise ValueError(f"rank is {rank!r} and num_ranks is {ranks!r}; pass both, or neither.")
    return rows.shard(ranks, rank)


class StructuredDataset(FrontDoor):
    """The rows of structured files.

        loader, dataset = StructuredDataset.create_dataloader("s3://bucket/rows", "parquet", batch_size=1024)

    Its states also name the splits of files that are done.
    """

    _bound_to_files = True
    _num_workers = 0
    _loader_plan: Plan | None = None
    """The plan of the loader that :meth:`create_dataloader` made of this dataset."""
    _layout: "SplitLayout | None" = None
    """The splits of the epoch of the last state."""

    def __init__(
        self,
        path: PathSpec,
        format: str | None = None,
        batch_size: int | None = None,
        *,
        output_format: OutputFormat | None = None,
        **options: Any,
    ) -> None:
        """Open the files that ``path`` names, all of ``format`` if that is set.

        The dataset yields rows, or batches of ``batch_size`` rows. By default rows have Python values, and batches,
        also those that a Loader makes of rows, have tensors. ``output_format`` says what both have. All other
        ``options`` are those of :meth:`create_dataloader` about files, order and ranks, and mean the same there.
        """
        form = output_format or ("dict" if batch_size is None else "torch")
        table = TableOptions(format=format, output_format=form, **options)
        rows = self._arranged(table.open(table.find(path, file_suffixes(format))), table)
        if output_format == "dict":  # said by the user, so it holds for the batches of a Loader too
            rows = rows.with_format("python")
        super().__init__(plan_of(rows if batch_size is None else rows.batch(batch_size)))

    def _arranged(self, rows: Dataset, options: TableOptions) -> Dataset:
        """Rows in the order, shard and format that the options ask for. Remembers where their files are cut."""
        self._splitting = Splitting(index=file_rows(rows, "splits").index.view, **options.split_sizes)
        self._shuffle_seed = options.seed
        return options.arrange(rows, self._splitting)

    @classmethod
    def create_dataloader(
        cls,
        path: PathSpec,
        format: str | None = None,
        batch_size: int = BATCH_ROWS,
        columns: Sequence[str] | None = None,
        filters: Any = None,
        shuffle: bool = False,
        shuffle_seed: int = 42,
        split_bytes: int | str | None = "128MiB",
        split_rows: int | None = None,
        num_workers: int = 0,
        output_format: OutputFormat = "torch",
        storage_options: Mapping[str, Any] | None = None,
        collate_fn: Callable[..., Any] | None = None,
        partitioning: Literal["hive"] | None = None,
        num_ranks: int | None = None,
        rank: int | None = None,
        show_progress: bool = False,
        shuffle_buffer_size: int | None = None,
        **options: Any,
    ) -> "tuple[StructuredLoader, Self]":
        """A loader of batches, and its dataset. The two share one position, so a state of either resumes both.

            loader, dataset = midepoch.StructuredDataset.create_dataloader("data", "parquet", batch_size=32)

        ``path`` is a file, a folder, a glob or a list of those. ``format`` sets the format of all files, and of a
        folder reads only the files with the suffixes of that format; by default each file is detected. Only
        ``columns`` are read, and row groups that ``filters`` rule out are skipped. ``partitioning="hive"`` makes
        columns of folders named key=value, also of those above a single file; by default they are only folders.

        A batch has ``batch_size`` rows; with ``drop_last=True`` the last one of a lane is left out if it has fewer. The
        dataset yields batches too, and ``collate_fn`` is called on each batch. A batch is what ``output_format`` says:
        a dict of tensors ("torch"), of arrays ("numpy") or of lists ("dict"), or a record batch ("arrow").

        ``shuffle`` permutes the splits, and the rows inside windows of about ``shuffle_buffer_size`` rows (default
        8192; with 0 rows keep their order), differently in every epoch, by ``shuffle_seed``. If only
        ``shuffle_buffer_size`` is passed, splits stay in the order of the files. A split is a part of a file of about
        ``split_bytes`` bytes, or of ``split_rows`` rows; it has at least one block. With ``split_bytes=None`` it is a
        whole file. ``rank`` and ``num_ranks`` come by default from ``torch.distributed`` or the launcher's environment.
        ``show_progress`` shows a progress bar on a terminal.

        ``storage_options``, and ``read_ahead``, ``cache_dir``, ``cache_bytes``, ``index_dir``, ``max_record_bytes``,
        ``trust_shared``, ``executor`` and ``shared_listing`` among the ``options``, are those of :func:`midepoch.read`.
        ``num_workers`` and all other ``options``, such as ``even``, ``drop_last``, ``pin_memory`` or
        ``persistent_workers``, are those of :class:`midepoch.Loader`.
        """
        own = options_among(TableOptions, {**locals(), **options})
        return cls(path, **own)._with_loader(
            batch_size,
            num_workers=num_workers,
            show_progress=show_progress,
            collate_fn=collate_fn,
            **{name: value for name, value in options.items() if name not in own},
        )

    def _with_loader(
        self, batch_size: int = BATCH_ROWS, drop_last: bool = False, show_progress: bool = False, **options: Any
    ) -> "tuple[StructuredLoader, Self]":
        """A loader of batches, and the dataset that it reads."""
        from midepoch.integrations.structured_loader import StructuredLoader  # imports torch

        dataset = self if plan_of(self).pipeline.chooses_form else self.with_format("python")  # lists in batches too
        dataset = dataset.batch(batch_size, drop_last)
        loader = StructuredLoader(dataset, **options)
        loader.show_progress = show_progress
        dataset.share_position_of(loader)
        return loader, dataset

    def share_position_of(self, loader: "StructuredLoader") -> None:
        """Make this dataset and its loader a pair with one position."""
        self._loader_plan, self._num_workers, self._position = loader.plan, loader.num_workers, loader.position

    def _plan_of_position(self) -> Plan:
        """The plan of those who share this dataset's position: of its loader, if there is one."""
        own = position_of(self).is_of_loader and self._loader_plan
        return own or plan_of(self)

    def state_dict(self) -> dict[str, Any]:
        """What the loop has received, and nothing else.

            torch.save(dataset.state_dict(), "data.pt")

        The loader of :meth:`create_dataloader` has the same state.
        """
        position_of(self).check_known()
        run = position_of(self).latest(self._plan_of_position())
        return {**run.plan.pipeline.state_dict(run.state()), **self.own_keys(run)}

    def own_keys(self, run: Pass) -> dict[str, Any]:
        """The splits that are done.

        ``completed_shards`` has, for each lane, the number of splits done and the last of them by name;
        ``splits_under_way`` has the splits of which some rows are delivered. Both stay small with any number of splits.
        """
        own = {"_num_workers": self._num_workers, "_shuffle_seed": self._shuffle_seed}
        return {**own, **self._split_report(run.state())}

    def load_state_dict(
        self, state_dict: Mapping[str, Any], *, new_files: Literal["error", "append"] = "error"
    ) -> None:
        """Resume at a state. If it does not fit, this raises, says what differs, and changes nothing.

            dataset.load_state_dict(torch.load("data.pt", weights_only=True))

        ``state_dict`` is a state of this dataset or of its loader. With ``new_files="append"`` files may have been
        added since. The epoch then continues as it was, and the rows of the new files come after it. The next epoch has
        all files from its start.
        """
        check_choice("new_files", new_files, ("error", "append"))
        plan = self._plan_of_position()
        if new_files == "append":
            state_dict = with_appended_files(state_dict, plan.pipeline)
        position_of(self).load_state_dict(plan, state_dict)

    def _split_report(self, state: State) -> dict[str, Any]:
        """The splits that are done at a state; none where the order of rows is not one of splits."""
        rows = plan_of(self).pipeline.source
        by_example = state.lanes is not None and state.mode == "example" and not state.appended
        if not by_example or not isinstance(rows, FileRows) or not is_order_of_splits(rows):
            return {"completed_shards": [], "splits_under_way": []}
        layout = self._layout
        if layout is None or not layout.is_of(rows, state):
            layout = self._layout = SplitLayout(rows, self._splitting, epoch=state.epoch, lanes=state.lanes or 0)
        return layout.report(state)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_loader_plan": None, "_layout": None}


class SplitOrder:
    """An order with splits for its pieces, in place of files."""

    def __init__(self, inner: Order, bounds: I64) -> None:
        self._inner, self._bounds, self.blocks = inner, bounds, inner.blocks
        self.size = inner.size

    def rows(self, positions: I64) -> I64:  # noqa: D102
        return self._inner.rows(positions)

    def positions(self, rows: I64) -> I64:  # noqa: D102
        return self._inner.positions(rows)

    def piece_starts(self, level: Literal["file", "block"]) -> I64:  # noqa: D102
        return self._bounds if level == "file" else self._inner.piece_starts(level)


@dataclass(frozen=True, kw_only=True)
class Splitting:
    """Where files are cut into splits: between blocks, after about ``most_bytes`` bytes or ``most_rows`` rows."""

    index: IndexView
    most_bytes: int | None = None
    most_rows: int | None = None

    def cut(self, order: Order) -> SplitOrder:
        """The order, which must be one of whole blocks, with splits for its pieces."""
        bounds = distinct(order.piece_starts("block"))
        if not order.size:
            return SplitOrder(order, np.zeros(1, np.int64))
        firsts = order.rows(bounds[:-1])
        files = np.searchsorted(self.index.file_starts, firsts, "right") - 1
        opens = np.diff(files, prepend=-1) != 0
        for most, sizes in ((self.most_bytes, self._bytes(firsts)), (self.most_rows, np.diff(bounds))):
            if most is not None:
                before = np.cumsum(sizes) - sizes
                before_file = before[np.maximum.accumulate(np.where(opens, np.arange(len(opens)), 0))]
                opens = opens | (np.diff((before - before_file) // most, prepend=-1) != 0)
        return SplitOrder(order, np.append(bounds[:-1][opens], bounds[-1]).astype(np.int64))

    def _bytes(self, rows: I64) -> I64:
        """The bytes of the blocks that begin at these rows."""
        starts = self.index.block_starts
        lengths: I64 = self.index.block_lengths[np.searchsorted(starts, rows, "right") - 1]
        return lengths

    def describe(self) -> dict[str, int]:
        """The sizes that a state remembers."""
        sizes = {"split_bytes": self.most_bytes, "split_rows": self.most_rows}
        return {name: size for name, size in sizes.items() if size is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleSplits(Shuffle):
    """A shuffle of the splits, then of the rows inside windows.

    A window is a part of one split, or several whole splits, which form a *group*. So all splits of a group are done
    before the next group begins.
    """

    splitting: Splitting
    permutes: bool = True
    """False if only the rows inside windows change places, and splits stay in the order of the files."""
    level: Literal["file", "block", "row"] = "block"
    window_bytes: int = 0  # windows are cut by rows alone

    def apply(self, inner: Order, *key: int | str) -> Order:  # noqa: D102
        splits = self.permuted(inner, *key)
        if not self.window:
            return splits
        blocks = windows_of_rows(splits.piece_starts("block"), self.window)
        starts = np.unique(np.concatenate([self.groups(splits), blocks]))
        return ShuffledWindows(splits, starts, key_of(self.seed, "window", *key))

    def permuted(self, inner: Order, *key: int | str) -> Order:
        """The splits, permuted; the rows inside each keep their order. Pieces at level "file" are the splits."""
        if not self.permutes:
            return self.splitting.cut(inner)
        return ShuffledPieces(self.splitting.cut(inner), "file", key_of(self.seed, "split", *key))

    def groups(self, splits: Order) -> I64:
        """The first position of each group, and the end."""
        return windows_of_rows(splits.piece_starts("file"), max(1, self.window))

    def describe(self) -> dict[str, Any]:  # noqa: D102
        return {
            "op": "shuffle",
            "level": "split",
            "seed": self.seed,
            "window": self.window,
            **({} if self.permutes else {"permutes": False}),
            **self.splitting.describe(),
        }


def is_order_of_splits(rows: FileRows) -> bool:
    """True if the order is that of the files, maybe without deleted rows, maybe with the splits shuffled."""
    steps = rows.steps[:-1] if rows.steps and isinstance(rows.steps[-1], ShuffleSplits) else rows.steps
    return all(isinstance(step, Deletes) for step in steps)


class SplitLayout:
    """The splits of one epoch in their order, and the lanes that cut it."""

    def __init__(self, rows: FileRows, splitting: Splitting, *, epoch: int, lanes: int) -> None:
        self.file_rows, self.epoch, self.lanes = rows, epoch, lanes
        self._index = rows.index.view
        last = rows.steps[-1] if rows.steps else None
        if isinstance(last, ShuffleSplits):
            number = len(rows.steps) - 1
            splits: Order = last.permuted(build_order(rows.base, rows.steps[:-1], epoch), epoch, number)
        else:
            splits = splitting.cut(build_order(rows.base, rows.steps, epoch))
        starts = splits.piece_starts("file")
        self._groups = last.groups(splits) if isinstance(last, ShuffleSplits) else starts
        self._first_splits = np.searchsorted(starts, self._groups)
        self._firsts, self._lasts = splits.rows(starts[:-1]), splits.rows(starts[1:] - 1)
        cuts = np.array(lane_cuts(rows.size, lanes), np.int64)
        self._cuts, self._lane_sizes = cuts[:-1], np.diff(cuts)
        self._lanes = np.searchsorted(self._cuts, self._groups[:-1], "right") - 1  # in which each group begins

    def is_of(self, rows: FileRows, state: State) -> bool:
        """True if these are the splits of the epoch of a state."""
        return self.file_rows is rows and (self.epoch, self.lanes) == (state.epoch, state.lanes)

    def report(self, state: State) -> dict[str, Any]:
        """The splits that are done and those under way. The report is short, however many splits there are."""
        lanes, delivered = _delivered(state)
        lanes, delivered = lanes[:REPORTED_LANES], np.minimum(delivered, self._lane_sizes)
        sizes, rows = np.diff(self._groups), np.diff(self._delivered_before(self._groups, delivered))
        done = rows == sizes
        shards = []
        for lane in lanes:  # its first groups are done, up to some group
            first, stop = np.searchsorted(self._lanes, [lane, lane + 1])
            begin, end = self._first_splits[[first, first + np.count_nonzero(done[first:stop])]].tolist()
            names = self._names(max(begin, end - REPORTED_SPLITS // len(lanes)), end)
            shards.append({"lane": lane, "splits_done": end - begin, "splits": names})
        under_way = []
        for group in np.flatnonzero((rows > 0) & ~done & np.isin(self._lanes, lanes)).tolist():
            begin, end = self._first_splits[group : group + 2].tolist()
            facts = {"count": end - begin, "rows": int(sizes[group]), "rows_delivered": int(rows[group])}
            under_way.append({"splits": self._names(begin, min(end, begin + REPORTED_OF_GROUP)), **facts})
        return {
            "splits": len(self._firsts),
            "splits_done": int(np.diff(self._first_splits)[done].sum()),
            "rows_done": int(delivered.sum()),
            "completed_shards": shards,
            "splits_under_way": under_way,
        }

    def _delivered_before(self, positions: I64, delivered: I64) -> I64:
        """The number of delivered rows before positions of the epoch, if each lane has delivered so many."""
        lane = np.searchsorted(self._cuts, positions, "right") - 1
        before: I64 = (np.cumsum(delivered) - delivered)[lane]
        before += np.minimum(positions - self._cuts[lane], delivered[lane])
        return before

    def _names(self, begin: int, end: int) -> list[dict[str, Any]]:
        """The file of each split of a range, and which rows of it; None for all of them."""
        starts, firsts, stops = self._index.file_starts, self._firsts[begin:end], self._lasts[begin:end] + 1
        files = np.searchsorted(starts, firsts, "right") - 1
        is_whole = (firsts == starts[files]) & (stops == starts[files + 1])
        facts = (files.tolist(), is_whole.tolist(), (firsts - starts[files]).tolist(), (stops - firsts).tolist())
        return [
            {
                "path": self._index.names[file],
                "row_offset": None if whole else offset,
                "row_length": None if whole else length,
            }
            for file, whole, offset, length in zip(*facts, strict=True)
        ]


def _delivered(state: State) -> tuple[list[int], I64]:
    """The lanes to report on, the next one first, and the number of delivered rows of every lane.

    The state of one of several readers reports on its own lanes. If readers share a lane, it only knows where the lane
    was when they started.
    """
    assert state.lanes is not None
    runs, progress = state.positions.runs, state.reader_progress
    delivered = np.repeat(
        np.array([position.cursor[0] for _, position in runs], np.int64), [count for count, _ in runs]
    )
    if progress is None or progress.reader is None:
        next_lanes = [(state.turn + number) % state.lanes for number in range(min(state.lanes, REPORTED_LANES))]
        return next_lanes, delivered
    assignment = LaneAssignment(lanes=state.lanes, turn=state.turn, readers=progress.readers)
    if assignment.stride == 1:
        for lane, _, cursor in progress.deliveries:
            delivered[lane] = cursor[0]
    return assignment.rotation(progress.reader), delivered


def with_appended_files(values: Mapping[str, Any], pipeline: Pipeline) -> Mapping[str, Any]:
    """The state as one of the pipeline's files, if all files of the state are among them unchanged.

    Otherwise, or if no file was added, the state is returned unchanged, and loading it says what differs.
    """
    values = checked_state(values)
    state, rows = State.from_dict(values), pipeline.source
    saved = values.get("fingerprint")
    if not isinstance(rows, FileRows) or not isinstance(saved, Mapping) or not isinstance(saved.get("data"), Mapping):
        return values
    saved_data = saved["data"]
    if saved_data.get("digest") == rows.fingerprint["digest"]:
        return values
    check_scale(state, rows.index.view.rows)
    try:
        saved_files = _numbers_now(saved_data, rows.index.view.facts)
    except (TypeError, ValueError, OverflowError) as error:
        raise CheckpointMismatchError(
            f"The state's list of files is damaged ({type(error).__name__}: {error}). Load an earlier checkpoint."
        ) from error
    if saved_files is None:
        return values
    fingerprint = {"data": rows.fingerprint, "pipeline": saved.get("pipeline")}
    if state.lanes is None and not state.later:
        return replace(state, earlier=()).to_dict(fingerprint)
    _check(state, rows, pipeline)
    files_now = [saved_files[files] for files in generations(state.appended, len(saved_files))]
    if len(files_now) > MOST_APPENDED:
        raise CheckpointMismatchError(
            f"Files were added {MOST_APPENDED} times in this epoch already. Finish it with the files it has, and "
            "read the new ones from the next epoch on."
        )
    saved_rows = int(np.diff(rows.index.view.file_starts)[saved_files].sum())
    appended = tuple(ranges_of(files) for files in files_now)
    return replace(state, appended=appended, positions=_clipped(state, saved_rows)).to_dict(fingerprint)


def _numbers_now(saved: Mapping[str, Any], files: Sequence[FileFacts]) -> I64 | None:
    """The present numbers of the files of a state, if all are unchanged and in their order, and others exist.

    A state of a few files lists them. A state of many has only a digest, so new files must come last in the order.
    """
    if "list" in saved:
        names = {name for name, _, _ in saved["list"]}
        numbers = [number for number, (name, _, _) in enumerate(files) if name in names]
    else:
        numbers = list(range(min(len(files), int(saved.get("files", 0)))))
    same = data_fingerprint([files[number] for number in numbers])["digest"] == saved.get("digest")
    return np.array(numbers, np.int64) if same and len(numbers) < len(files) else None


def _check(state: State, rows: FileRows, pipeline: Pipeline) -> None:
    """Raise if the order of the epoch under way cannot be rebuilt from its files alone."""
    reasons = {
        "filters leave out other blocks when there are other files": rows.where is not None,
        "the epoch was sharded with shard(mode='file')": state.mode != "example",
        "the rows are cut by take, skip, a survey or a selection": not all(
            isinstance(one, Shuffle) for one in rows.steps
        ),
        "a stage makes groups of rows, such as a batched map or pack": len(pipeline.begin) > 1,
        "the checkpoint holds what one of several readers delivered, or some were ahead of others": (
            state.reader_progress is not None or not state.positions.in_step
        ),
        "some ranks had begun the next epoch": bool(state.later),
    }
    why = next((reason for reason, holds in reasons.items() if holds), None)
    if why is not None:
        raise CheckpointMismatchError(
            f"new_files='append' is not possible: {why}. Finish the epoch with the files it had, and add the new ones "
            "then."
        )


def _clipped(state: State, rows: int) -> LanePositions:
    """The lane positions in an epoch of ``rows`` rows, none past the end of its lane.

    A short last batch counts as a full one, but only its rows are delivered.
    """
    sizes = [end - begin for begin, end in pairwise(lane_cuts(rows, len(state.positions)))]
    return LanePositions.pack(
        (1, LanePosition((min(position.cursor[0], sizes[lane]),)))
        for lane, position in enumerate(state.positions.expand())
    )
