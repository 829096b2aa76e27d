"""The methods of a dataset that act on the order of its rows: shuffle, choose, leave out and split."""

import logging
from collections.abc import Iterable
from dataclasses import replace
from numbers import Real
from typing import Any, Generic, NamedTuple, Self, TypeVar

import numpy as np
import pyarrow as pa

from midepoch._common.checks import Size, check_integer, count, log_once, parse_size, seed_of
from midepoch.dataset.planned import Item
from midepoch.dataset.transforms import TransformedDataset
from midepoch.order.orders import Level, Shuffle, Slice
from midepoch.order.quality import ShuffleQuality
from midepoch.order.selection import Bound, Half, Selection, TrainTestSplit, slice_bounds
from midepoch.order.windows import WINDOW, WINDOW_BLOCKS, WINDOW_BYTES
from midepoch.pipeline.adopt import without

log = logging.getLogger("midepoch")

SplitDataset = TypeVar("SplitDataset", bound="OrderedDataset")


class TrainTest(NamedTuple, Generic[SplitDataset]):
    """The two datasets of a split. They have no row in common, and together all rows."""

    train: SplitDataset
    test: SplitDataset


class OrderedDataset(TransformedDataset[Item]):
    """A plan with an order of rows. :class:`midepoch.Dataset` adds shards, surveys and caches."""

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
        reader holds one window for each of its lanes. Local uncompressed Arrow counts as small virtual blocks of 256
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
        shuffled = self.with_order_step("shuffle", step)
        rows = shuffled.file_rows("shuffle")
        if level == "block":
            rows.log_window(step)
        elif level == "file" and len(rows.index.view.names) == 1:
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
        step = Slice(start=0, stop=check_integer("n", n))
        cut = self.with_order_step("take", step)
        self._warn_of_leaks()
        return cut

    def skip(self, n: int) -> Self:
        """Leave out the first ``n`` rows of the order. No row is read for this.

            rest = midepoch.read("data/*.parquet").skip(100)

        After a shuffle these are other rows in every epoch. To separate training from validation, use
        :meth:`train_test_split`.
        """
        step = Slice(start=check_integer("n", n), stop=None)
        cut = self.with_order_step("skip", step)
        self._warn_of_leaks()
        return cut

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
        return self.with_plan(replace(self.plan, pipeline=without(self.plan.pipeline, rows)))

    def select(self, indices: Iterable[int]) -> Self:
        """Keep the rows at these positions of the order, in the order of ``indices``. No row is read for this.

            chosen = midepoch.read("data/*.parquet").select([5, 3, 99])

        A range with steps of 1 costs nothing; other indices are kept in memory, 8 bytes each. After a shuffle these
        are other rows in every epoch.
        """
        rows = self.with_order_step("select", Slice(start=0, stop=None)).file_rows("select").size
        if isinstance(indices, range) and indices.step == 1:
            chosen: Any = np.array([indices.start, indices.stop - 1] if indices else [], np.int64)
            step: Slice | Selection = Slice(start=indices.start, stop=max(indices.start, indices.stop))
        else:
            chosen = np.fromiter((check_integer("A position in select", one, least=None) for one in indices), np.int64)
            step = Selection(table=pa.table({"indices": chosen}))
        wrong = chosen[(chosen < 0) | (chosen >= rows)]
        if len(wrong):
            raise IndexError(f"select: there is no row {wrong[0]}; the dataset has {count('row', rows)}.")
        selected = self.with_order_step("select", step)
        self._warn_of_leaks()
        return selected

    def slice(self, start: Bound | None = None, stop: Bound | None = None) -> Self:
        """Keep the rows from ``start`` to ``stop`` of the order. No row is read for this.

            validation, train = dataset.slice(stop="10%"), dataset.slice("10%")

        Both are numbers of rows, which count from the end if they are negative, or percents such as "10%" or shares
        such as 0.1, which are rounded to the nearest row. After a shuffle these are other rows in every epoch.
        """
        rows = self.with_order_step("slice", Slice(start=0, stop=None)).file_rows("slice").size
        first, end = slice_bounds(start, stop, rows)
        cut = self.with_order_step("slice", Slice(start=first, stop=end))
        self._warn_of_leaks()
        return cut

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
        if self.file_rows("train_test_split").shuffled:
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
        split = TrainTest(self._half("train", size, seed), self._half("test", size, seed))
        rows = sum(half.file_rows("train_test_split").size for half in split)
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
        rows, plan = self.file_rows("shuffle_quality"), self.plan
        return rows.shuffle_quality(
            epoch=self.epoch, lanes=plan.lanes or plan.ranks, mode=plan.mode, batch_size=batch_size
        )

    def _half(self, half: Half, test_size: int | float, seed: int) -> Self:
        return self.with_order_step("train_test_split", TrainTestSplit(half=half, test_size=test_size, seed=seed))

    def _warn_of_leaks(self) -> None:
        if self.plan.pipeline.source.shuffled:
            log_once(
                "take, skip and select after shuffle choose other rows in every epoch. That is a way to sample, but "
                "not to separate training from validation: rows would move between the two. For that, use "
                "dataset.train_test_split(...) before shuffle."
            )
