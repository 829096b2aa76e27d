"""Ray: an executor whose calls are tasks of a cluster, and Loaders for Ray Train.

loader = prepare_loader(midepoch.Loader(dataset.shard(), batch_size=8))
for batch in loader:
    ...
    loader.report({"loss": loss}, folder)
"""

import json
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Executor, Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from midepoch.errors import needs

with needs("ray", "ray", "midepoch.integrations.ray"):
    import ray

if TYPE_CHECKING:
    from midepoch.loader import Loader

FILE = "midepoch_loader.json"
UNREPORTED = "Report checkpoints with loader.report(metrics, folder) in place of ray.train.report."
R = TypeVar("R")
NOTIFYING = threading.Lock()
_NOTIFIED: "WeakSet[Future[Any]]" = WeakSet()
"""Cancelled futures that have released those who wait for them, which a future does only once."""


class RayExecutor(Executor):
    """An executor whose calls are tasks of a Ray cluster.

        with RayExecutor(num_cpus=1) as executor:
            dataset = midepoch.read("s3://bucket/data", executor=executor)

    A process that is connected to Ray already uses that connection; an ``address`` raises then. Otherwise
    ``ray.init(address)`` connects it until the executor is shut down; without an address, to the cluster of
    ``RAY_ADDRESS``, or to a new one on this machine. ``remote_options`` are those of ``ray.remote``, for each call:
    num_cpus, memory, resources, runtime_env, max_retries …

    If the worker of a call dies, Ray makes the call again, ``max_retries`` times (by default 3). After that, the
    future raises Ray's error. An error of the function itself is raised unchanged; its cause is Ray's error, with the
    traceback of the worker. Cancelling a future asks Ray to cancel its call, also one that is running.
    """

    def __init__(self, address: str | None = None, **remote_options: Any) -> None:
        if address is not None and ray.is_initialized():
            raise ValueError(
                f"address is {address!r}, but this process is connected to a Ray cluster already. Leave the address "
                "out to use that cluster, or call ray.shutdown() first."
            )
        task = ray.remote(_call)
        self._task = task.options(**remote_options) if remote_options else task
        self._has_connected = not ray.is_initialized()
        if self._has_connected:
            self._sigterm = signal.getsignal(signal.SIGTERM)
            ray.init(address)
        self._unfinished: set[Future[Any]] = set()
        self._is_shut_down = False

    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> Future[R]:
        """Run ``fn`` with ``args`` and ``kwargs`` as a task, and return the future of its result."""
        if self._is_shut_down:
            raise RuntimeError("This RayExecutor was shut down. Make a new one for further calls.")
        future: Future[R] = Future()
        self._unfinished.add(future)
        reference = self._task.remote(fn, args, kwargs)
        future.add_done_callback(partial(_cancel, reference))
        reference.future().add_done_callback(partial(self._finish, future))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more calls; wait for those that are not finished, or cancel them.

        With ``cancel_futures=True`` unfinished calls are cancelled; with ``wait=False`` this returns at once.
        A connection that this executor made is closed only after waiting, because that ends all its tasks.
        """
        self._is_shut_down = True
        unfinished = list(self._unfinished)
        if cancel_futures:
            for future in unfinished:
                future.cancel()
        if wait:
            futures.wait(unfinished)
            if self._has_connected:
                self._has_connected = False
                ray.shutdown()
                _restore_sigterm(self._sigterm)

    def _finish(self, future: Future[Any], done: Future[Any]) -> None:
        """Copy what a task returned or raised to its future. Ray calls this in a thread of its own."""
        if _begin_result(future):
            error = done.exception()
            if error is None:
                future.set_result(done.result())
            else:
                future.set_exception(_own_error(error))
        self._unfinished.discard(future)


def _restore_sigterm(handler: Any) -> None:
    """Take away the handler that ``ray.init`` leaves in the process.

    Processes that are forked later would inherit it. They would not end on SIGTERM, and ``Pool.terminate`` would wait
    for them forever.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and handler is not None:  # None: it was not set from Python, so it cannot be set back
        signal.signal(signal.SIGTERM, handler)


def _call(function: Callable[..., R], args: Sequence[Any], kwargs: Mapping[str, Any]) -> R:
    return function(*args, **kwargs)


def _cancel(reference: Any, future: Future[Any]) -> None:
    """Cancel the task of a future that was cancelled. Ray may never say that a task is cancelled, so nobody waits."""
    if future.cancelled():
        _begin_result(future)
        ray.cancel(reference)


def _begin_result(future: Future[Any]) -> bool:
    """True if a future waits for its result. One that was cancelled releases those who wait for it, once."""
    with NOTIFYING:
        if future.cancelled() and future in _NOTIFIED:
            return False
        waits = future.set_running_or_notify_cancel()
        if not waits:
            _NOTIFIED.add(future)
        return waits


def _own_error(error: BaseException) -> BaseException:
    """The error that a function raised, from that which Ray made of it."""
    cause = getattr(error, "cause", None)
    if not isinstance(error, ray.exceptions.RayTaskError) or not isinstance(cause, Exception):
        return error
    cause.__cause__ = error
    return cause


def prepare_loader(loader: "Loader") -> "ReportingLoader":
    """A loader for the training function of a TorchTrainer.

    ``loader`` is the Loader of this worker. It starts from the checkpoint that Ray gives this run, if there is one, on
    any number of workers. All workers call this, and get the same number of batches.
    """
    import ray.train  # as midepoch.distributed, it is not needed for an executor

    from midepoch.distributed import epoch_is_over, read_state

    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return ReportingLoader(loader)
    with checkpoint.as_directory() as folder:
        loader.load_state_dict(read_state(Path(folder) / FILE, UNREPORTED))
    return ReportingLoader(loader, is_over=epoch_is_over(loader))


class ReportingLoader:
    """The batches of a loader, and :meth:`report`."""

    def __init__(self, loader: "Loader", *, is_over: bool = False) -> None:
        """``is_over`` means that nothing is left of the epoch that was loaded."""
        self.loader, self._is_over = loader, is_over

    def __iter__(self) -> Iterator[Any]:
        """A pass from the start point. If nothing is left of the epoch that was loaded, it is the next epoch."""
        from midepoch.distributed import one_epoch

        if self._is_over:
            self.set_epoch(self.epoch)
        return one_epoch(self.loader)

    def __len__(self) -> int:
        """The number of batches that this worker gets in an epoch, known without reading."""
        return self.loader.plan.length(self.epoch)

    def __bool__(self) -> bool:
        """True, even if the length is unknown."""
        return True

    @property
    def epoch(self) -> int:
        """The present epoch; after its last batch was loaded, the next one."""
        return self.loader.epoch + self._is_over

    @property
    def is_padding(self) -> bool:
        """True if the last batch is one that keeps workers even. It is in no state."""
        return self.loader.is_padding

    def set_epoch(self, epoch: int) -> None:
        """Start the next loop at the beginning of an epoch, or at the state of that epoch that was loaded."""
        self._is_over = False
        self.loader.set_epoch(epoch)

    def report(self, metrics: dict[str, Any], folder: str | Path | None = None) -> None:
        """``ray.train.report`` with a checkpoint of what is in ``folder``, and of the state of all workers' loaders.

        All workers call this after the same step. ``folder`` is where the worker of rank 0 has saved its model; other
        workers' folders are uploaded too, if they pass one.
        """
        import ray.train

        from midepoch.distributed import gather_state

        state = gather_state(self.loader)
        is_first = ray.train.get_context().get_world_rank() == 0
        if folder is None and not is_first:
            ray.train.report(metrics)
            return
        with tempfile.TemporaryDirectory() as temporary:
            target = Path(temporary if folder is None else folder)
            if is_first:
                (target / FILE).write_text(json.dumps(state))
            ray.train.report(metrics, checkpoint=ray.train.Checkpoint.from_directory(str(target)))
