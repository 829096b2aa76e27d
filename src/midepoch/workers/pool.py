"""The workers of a Loader: how the main process starts them, and receives what they send.

Workers take a rank's turns in parallel and send, with each item, the cursor after it. A worker sends an empty turn, at
a lane that has run out, without an item, which keeps the workers in step. :mod:`midepoch.workers.process` has what a
worker runs.
"""

import importlib
import os
import pickle
import sys
import time
import weakref
from collections.abc import Generator
from functools import partial
from typing import Any

import torch.multiprocessing
from torch.utils.data import DataLoader
from torch.utils.data._utils.pin_memory import pin_memory

from midepoch.delivery.gather import in_turn, without_waits
from midepoch.delivery.layout import Destination
from midepoch.delivery.plan import Plan
from midepoch.delivery.progress import AnyProgress, Turns
from midepoch.delivery.uncounted import ReportedProgress
from midepoch.errors import StaleIteratorError
from midepoch.stages.arguments import name_of
from midepoch.values.received import copied
from midepoch.workers.device import Copies, copies_to, one_ahead, start_copies
from midepoch.workers.mailbox import Mailbox, WorkerPort
from midepoch.workers.process import WorkerSettings
from midepoch.workers.worker import GRACE_SECONDS, Worker

GUARD = (
    ' If its output says "bootstrapping phase", the script starts workers while it is imported: put what it does '
    "under if __name__ == '__main__'."
)


class WorkerPool:
    """The processes that read for a loader; persistent workers stay for all epochs."""

    _hint = ""
    """What may be wrong if workers that are not forked die."""

    def __init__(
        self,
        loader: DataLoader[Any],
        plan: Plan,
        *,
        ahead: int | None,
        device: torch.device | None = None,
    ) -> None:
        """Start workers with the settings of a loader. ``ahead`` is as for a :class:`~delivery.transport.Sender`.

        Tensors are copied to a ``device``, if there is one, straight from the memory that is shared with the workers.
        """
        context = loader.multiprocessing_context or torch.multiprocessing
        if context.get_start_method() != "fork":
            _check_sendable(plan, context.get_start_method())
            self._hint = GUARD
        else:
            importlib.import_module("pyarrow.compute")  # once, and not in each worker before its first batch
        self._process, self._round = os.getpid(), 0
        self._timeout = loader.timeout
        self.copies = None if device is None else copies_to(device)
        self._to = _destination(device, self.copies, pin=pins(loader))
        seed = int(torch.empty((), dtype=torch.int64).random_(generator=loader.generator).item())
        self._workers: list[Worker] = []
        self._progress: AnyProgress | None = None
        self._stop = weakref.finalize(self, _stop, self._workers, self._process)  # also at exit
        for number in range(loader.num_workers):
            settings = WorkerSettings(
                plan=plan,
                number=number,
                workers=loader.num_workers,
                seed=seed,
                ahead=ahead,
                init=loader.worker_init_fn,
                copies_tensors=self._to.new_tensor is not None,
            )
            self._workers.append(Worker(context, settings, self.copies))

    @property
    def is_of_this_process(self) -> bool:
        """False in a process that was forked from the one that started the workers."""
        return self._process == os.getpid()

    @property
    def is_closed(self) -> bool:
        """True if the workers were stopped."""
        return not self._stop.alive

    def close(self) -> None:
        """Stop the workers, in the process that started them. What they have sent is not delivered."""
        self._stop()
        if self._progress is not None:
            self._progress.cut_off()

    def work(self, progress: AnyProgress) -> Generator[Turns, None, None]:
        """Start all workers from where a progress is, and receive what they send, in the order of the rank's turns."""
        arriving = self._arriving(progress)
        return without_waits(arriving) if self.copies is None else one_ahead(arriving, self.copies)

    def _arriving(self, progress: AnyProgress) -> Generator[Turns | None, None, None]:
        """What the workers send, with a None before each wait."""
        self._round += 1
        self._progress = progress
        session = progress.session
        resume_point = session.start, progress.reader_progress(), session.readers, progress.reader
        mailbox = Mailbox(self._workers, self._round, progress, timeout=self._timeout)
        try:
            for worker in self._workers:
                worker.start(self._round, resume_point)
            count = len(self._workers)
            ports = [WorkerPort(mailbox, number, count, progress, self._to) for number in range(count)]
            arrived = in_turn(
                ports,
                len(progress.rotation) if isinstance(progress, ReportedProgress) else 1,
                tracks_cursors=not session.counted,
                on_device=self.copies is not None,
                has_hashes=session.pipeline.digest,
            )
            for turns in arrived:
                yield turns
                del turns
                if self.is_closed:
                    raise StaleIteratorError("This iterator is out of date: its Loader was closed. Call iter() again.")
        except Exception as error:
            dead = [] if self.is_closed else [worker.describe() for worker in self._workers if worker.has_died]
            if dead:
                error.add_note(
                    f"midepoch: {', '.join(dead)} died. Nothing is lost: the loader's state is that of the last batch "
                    "received. To continue after it, load that state and iterate again, here or in a new process."
                    f"{self._hint}"
                )
            raise
        finally:
            self._progress = None
            if not self.is_closed and self.is_of_this_process:
                mailbox.close()
                for worker in self._workers:
                    worker.interrupt(self._round)


def _destination(device: torch.device | None, copies: Copies | None, *, pin: bool) -> Destination:
    """What happens to tensors that arrive."""
    if device is not None and copies is not None:
        return Destination(copies.start, partial(start_copies, device=device, copies=copies))
    return Destination(partial(copied, pin=True), pinned) if pin else Destination()


def pins(loader: DataLoader[Any]) -> bool:
    """True if a loader's tensors are to be in pinned memory, and there is a device for which that is of use."""
    return bool(loader.pin_memory and torch.cuda.is_available())


def pinned(item: Any) -> Any:
    """The item with its tensors in pinned memory, as with torch's DataLoader. Those that are there already stay."""
    return pin_memory(item)  # type: ignore[no-untyped-call]


def _stop(workers: list[Worker], process: int) -> None:
    """Stop workers, unless this process was forked from the one that started them."""
    if process != os.getpid():
        return
    for worker in workers:
        worker.stop()
    deadline = time.monotonic() + GRACE_SECONDS
    for worker in workers:
        worker.free(deadline)


def _is_of_no_file(function: Any) -> bool:
    """True if a function belongs to a notebook or a shell, whose code no other process can import."""
    while isinstance(function, partial) or hasattr(function, "__wrapped__"):
        function = function.func if isinstance(function, partial) else function.__wrapped__
    return getattr(function, "__module__", None) == "__main__" and not hasattr(sys.modules["__main__"], "__file__")


def _check_sendable(plan: Plan, method: str) -> None:
    """Raise, naming the function, if a pipeline cannot be sent to a process that is not forked."""
    for function in plan.pipeline.functions:
        if _is_of_no_file(function):
            raise TypeError(
                f"The function {name_of(function)} was defined in a notebook or a shell, and workers started by "
                f"{method!r} cannot import it from there. Write it into a module, such as functions.py, and import it, "
                "or pass num_workers=0. For files on this machine, multiprocessing_context='fork' works too."
            )
        try:
            pickle.dumps(function)
        except Exception as error:
            raise TypeError(
                f"The function {name_of(function)} cannot be sent to workers started by {method!r}: {error}. "
                "Define it at the top level of a module, or pass multiprocessing_context='fork'."
            ) from error
