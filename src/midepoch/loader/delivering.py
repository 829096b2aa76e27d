"""How a Loader delivers the batches of a pass: in this process, or by workers, and as many on every rank."""

import logging
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import chain, islice
from typing import Any
from weakref import WeakSet

import torch

from midepoch._common.once import log_once
from midepoch._common.world import launched_rank, process_group_store
from midepoch.checkpoint.state import State
from midepoch.dataset.dataset import Item
from midepoch.delivery.agreement import check_ranks_agree
from midepoch.delivery.metrics import Meter, OnMetrics
from midepoch.delivery.passes import Pass, PassIterator
from midepoch.delivery.progress import AnyProgress, Turns
from midepoch.delivery.reader import take_turns
from midepoch.delivery.session import Session
from midepoch.loader.asking import AskedLoader
from midepoch.loader.column_kinds import ColumnKinds
from midepoch.workers.device import on_device, pinned_turns, pins, start_copies
from midepoch.workers.pool import WorkerPool


class DeliveringLoader(AskedLoader[Item]):
    """A loader that can be iterated. :mod:`midepoch.workers.process` has what its workers run."""

    _pools: WeakSet[WorkerPool]
    _idle_pool: WorkerPool | None = None
    """Workers that wait for the next epoch or pass."""
    _ahead: int | None
    _device: torch.device | None
    _on_metrics: OnMetrics | None
    _metrics_every: int
    _column_kinds: ColumnKinds

    def __iter__(self) -> PassIterator[Item]:  # type: ignore[override]
        """A pass from the start point: the beginning of the epoch, or the state that was loaded.

        A pass that reaches its end moves the start point to the next epoch. One that is left early does not. Iterators
        are independent of each other, and each has a ``state_dict`` of its own.
        """
        self._waiting = None
        run = self._start_point.begin(self._plan)
        self._meter = Meter(run, on_metrics=self._on_metrics, every=self._metrics_every)
        batches = self.batches(run)
        if self._options.collate is None and self._plan.pipeline.item_spec == ("torch", True):
            batches = self._column_kinds.watched(batches)
        return PassIterator.over(run, self._meter.timed(batches), self.describe_state)

    def with_states(self) -> Iterator[tuple[Item, dict[str, Any]]]:
        """Each batch with the state after it, for callers that read ahead of what they train on."""
        batches = iter(self)
        for batch in batches:
            yield batch, batches.state_dict()

    def batches(self, run: Pass) -> Iterator[Iterable[Any]]:
        """The batches of a pass, many at a time."""
        try:
            with run:
                in_bulk = chain.from_iterable(self._epoch_batches(run, progress) for progress in run.epochs())
                for batches in in_bulk:
                    remaining = iter(batches)
                    yield islice(remaining, 1)
                    self._check_ranks_agree(run)  # once a second batch is asked for: a peek on one rank says nothing
                    yield remaining
                    break
                yield from in_bulk
                self._finished_run = run
        finally:
            self._dismiss_idle_workers()

    def close(self) -> None:
        """Stop the workers. Iterators that use them are out of date; a new one starts new workers.

            loader.close()

        The state stays that of the last batch that was received.
        """
        for pool in list(self._pools):
            pool.close()
        self._idle_pool = None

    def _check_ranks_agree(self, run: Pass) -> None:
        store = None if self._number is None else process_group_store()
        if store is not None and self._number is not None:
            check_ranks_agree(store, run, loader=self._number, rank=(launched_rank() or (run.plan.rank,))[0])

    def _epoch_batches(self, run: Pass, progress: AnyProgress) -> Iterator[Iterable[Any]]:
        """The batches of one epoch, and those that keep the ranks even."""
        session = progress.session
        even = self._plan.even if self._plan.keeps_even(session) else None
        if self._plan.even is not None and not session.counted:
            log_once(
                "Ranks may have different numbers of batches in this epoch, because the state that was loaded holds "
                "what one of several ranks delivered, lanes of whole files, or windows of packs out of which rows were "
                "left. Iterate over "
                "midepoch.distributed.in_step(loader). To have the batches counted, load merge_states of all ranks' "
                "states into all ranks."
            )
        if even != "drop":
            yield from run.deliver(self._turns(progress))
        elif most := self._plan.items_per_rank(session):
            for batch in chain.from_iterable(run.deliver(self._turns(progress))):
                yield (batch,)
                if progress.items == most:
                    return
        step = self._plan.items_per_step
        while even == "pad" and not (session.is_complete(progress.items) and progress.items % step == 0):
            log_once(
                "Ranks have different numbers of batches: those with fewer repeat one, marked by is_padding.",
                logging.INFO,
            )
            padding = self.padding_batch(session)
            if self._device is not None:
                padding, wait = start_copies(padding, self._device)
                wait()
            yield run.pad(padding)

    def padding_batch(self, session: Session) -> Any:
        """The first batch of the epoch: the one that ranks repeat, so that all repeat the same."""
        one_reader = replace(self._plan, ranks=1, rank=0, lanes=session.start.lanes, mode=session.start.mode)
        start = session.start
        progress = one_reader.begin(State(epoch=start.epoch, appended=start.appended))
        return next(chain.from_iterable(progress.follow(take_turns(progress))))

    def _turns(self, progress: AnyProgress) -> Iterator[Turns]:
        """The rank's turns, in order, as its workers take them."""
        all_turns = self._receive(progress) if self.num_workers else take_turns(progress)
        if self._device is not None:
            yield from on_device(all_turns, self._device)
            return
        with closing(all_turns):
            turns_that_came = filter(None, all_turns)
            yield from pinned_turns(turns_that_came) if pins(self) else turns_that_came

    def _receive(self, progress: AnyProgress) -> Generator[Turns | None, None, None]:
        """What the workers send when they all start from where a progress is, with a None before each wait."""
        pool = self._idle_pool if self._idle_pool is not None and self._idle_pool.is_of_this_process else None
        self._idle_pool = None  # so that another pass meanwhile starts workers of its own
        if pool is None:
            pool = WorkerPool(self, self._plan, ahead=self._ahead)
        self._pools.add(pool)
        stays = False
        try:
            yield from pool.work(progress)
            stays = self.persistent_workers or self._plan.epochs_per_loop != 1  # for the next epoch of this pass
        except GeneratorExit:
            stays = self.persistent_workers
            raise
        finally:
            if stays and not pool.is_closed and self._idle_pool is None:
                self._idle_pool = pool
            else:
                pool.close()

    def _dismiss_idle_workers(self) -> None:
        """Stop the workers that no pass uses, unless they are to stay."""
        if not self.persistent_workers and self._idle_pool is not None:
            pool, self._idle_pool = self._idle_pool, None
            pool.close()
