"""Dataset: what users build. Each method adds to a plan and returns a new dataset.

Here are the methods that say who reads, how often, and what is computed once and kept. The others are inherited.
"""

import logging
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self

from midepoch._common.checks import check_integer, checked_version
from midepoch._common.files import check_trust
from midepoch._common.world import Mesh, launched_rank, mesh_shard, unfinished_launch
from midepoch.dataset.map_view import MapView
from midepoch.dataset.ordered import OrderedDataset
from midepoch.dataset.planned import Item
from midepoch.delivery.plan import Plan, ShardMode, check_shard
from midepoch.pipeline.cache import cache_pipeline
from midepoch.pipeline.surveyed import survey_pipeline

log = logging.getLogger("midepoch")

Mode = Literal["auto", "file", "example"]


class Dataset(OrderedDataset[Item]):
    """Rows of files, in an order, through stages. Lazy: every method below returns a new dataset and reads nothing.

        dataset = midepoch.read("data/*.parquet").shuffle(seed=42).map(tokenize).batch(8)
        for batch in dataset: ...

    A loop starts at the beginning of the epoch, or at the state that ``load_state_dict`` set. After a full loop the
    next one is the next epoch. A loop that is left early changes nothing: the next one starts at the same point.
    """

    def iter(self, batch_size: int, drop_last_batch: bool = False) -> Iterator[Any]:
        """An iterator over batches of the next loop: that of :meth:`batch`.

            for batch in midepoch.read("data/*.parquet").iter(batch_size=8):
                print(batch["id"])

        ``batch_size`` and ``drop_last_batch`` are those of :meth:`batch`. The iterator's position is not that of the
        dataset.
        """
        return iter(self.batch(batch_size, drop_last_batch))

    def shard(
        self,
        num_shards: int | None = None,
        index: int | None = None,
        mode: Mode = "auto",
        *,
        contiguous: bool | None = None,
        mesh: Mesh | None = None,
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
        given += [] if mesh is None else [mesh_shard(mesh, dim)]
        if len(given) > 1:
            raise ValueError("Pass one of num_shards and index, dp_world_size and dp_rank, or mesh.")
        ranks, rank = _both(*given[0]) if given else _launched_shard()
        plan = self.plan
        if plan.sharded_by == "launcher":
            plan = replace(plan, ranks=1, rank=0, sharded_by=None)
        shard_mode: ShardMode = "file" if mode == "file" else "example"
        lanes = plan.lanes if contiguous is None else _lanes_of_shards(plan, shard_mode, ranks, contiguous=contiguous)
        ranks, rank = plan.ranks * ranks, plan.rank + plan.ranks * rank
        return self.with_plan(replace(plan, ranks=ranks, rank=rank, mode=shard_mode, lanes=lanes, sharded_by="user"))

    def lanes(self, n: int) -> Self:
        """Cut every epoch into ``n`` lanes.

            dataset = midepoch.read("data/*.parquet").shuffle(seed=42).lanes(64)

        Runs with the same lanes have the same order on any number of readers.
        """
        return self.with_plan(replace(self.plan, lanes=check_integer("n", n, least=1)))

    def repeat(self, num_times: int | None = None) -> Self:
        """Let one loop run through ``num_times`` epochs, or forever. With 0 it yields nothing.

            three_epochs = midepoch.read("data/*.parquet").shuffle(seed=42).repeat(3)

        Each epoch has its own shuffle.
        """
        epochs = None if num_times is None else check_integer("num_times", num_times)
        return self.with_plan(replace(self.plan, epochs_per_loop=epochs))

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
            self.plan.pipeline,
            executor=executor,
            version=checked_version(version),
            folder=None if folder is None else Path(folder),
            trust_shared=check_trust(trust_shared),
        )
        if pipeline is self.plan.pipeline:
            log.info("There is nothing to survey: the number of items is known already.")
            return self
        return self.with_plan(replace(self.plan, pipeline=pipeline))

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
            self.plan.pipeline,
            Path(folder).expanduser(),
            executor=executor,
            version=checked_version(version),
            trust_shared=check_trust(trust_shared),
        )
        return self.with_other_rows(replace(self.plan, pipeline=pipeline))

    def as_map(self) -> MapView[Item]:
        """The items of the present epoch by position, for trainers that index: ``len(view)``, ``view[5]``.

            view = midepoch.read("data/*.parquet").map(tokenize).as_map()
            loader = DataLoader(view, batch_size=8, sampler=view.sampler(seed=42))

        It needs a dataset whose items are counted. Positions are those of one process, without shards and lanes; let
        the trainer's sampler choose among them, or ``view.sampler``, which shuffles, shards and resumes.
        """
        if (reason := self.why_not_counted()) is not None:
            raise ValueError(f"as_map needs a dataset whose number of items is known. {reason}")
        if self.plan.sharded_by == "user":
            raise ValueError("as_map after shard is not possible: it has all items. Pass num_shards to its sampler.")
        return MapView(self.plan, self.epoch)

    def with_other_rows(self, plan: Plan) -> "Dataset[Item]":
        """A dataset of other files. A subclass that knows its files overrides this and returns a plain Dataset."""
        return self.with_plan(plan)


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
    launched = launched_rank()
    if launched is not None:
        return launched[1], launched[0]
    if (unfinished := unfinished_launch()) is not None:
        raise ValueError(
            f"shard() does not know its rank: {unfinished}. Start with torchrun, initialise torch.distributed first, "
            "or pass num_shards and index."
        )
    return 1, 0
