"""Ray: an executor whose calls are tasks of a cluster, workers of Loaders that are actors, and Loaders for Ray Train.

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
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from midepoch.errors import needs

with needs("ray", "ray", "midepoch.integrations.ray"):
    import ray

if TYPE_CHECKING:
    from midepoch.loader import Loader
    from midepoch.workers.interface import Worker, WorkerSettings

FILE = "midepoch_loader.json"
UNREPORTED = "Report checkpoints with loader.report(metrics, folder) in place of ray.train.report."
MOST_CALLS = 1024
"""So many calls are tasks of the cluster at a time; others wait."""
OWN_OPTIONS = {
    "concurrency_groups",
    "get_if_exists",
    "lifetime",
    "max_concurrency",
    "max_restarts",
    "max_task_retries",
    "name",
    "namespace",
}
"""Options of actors that would leave one behind, or start it a second time."""
R = TypeVar("R")


class RayExecutor(ThreadPoolExecutor):
    """An executor whose calls are tasks of a Ray cluster. A thread of this process waits for each of them.

        with RayExecutor(num_cpus=1) as executor:
            dataset = midepoch.read("s3://bucket/data", executor=executor)

    A process that is connected to Ray already uses that connection; an ``address`` raises then. Otherwise
    ``ray.init(address)`` connects it until the executor is shut down; without an address, to the cluster of
    ``RAY_ADDRESS``, or to a new one on this machine. ``remote_options`` are those of ``ray.remote``, for each call:
    num_cpus, memory, resources, runtime_env, max_retries …

    If the worker of a call dies, Ray makes the call again, ``max_retries`` times (by default 3). After that, the
    future raises Ray's error. An error of the function itself is raised unchanged; its cause is Ray's error, with the
    traceback of the worker.
    """

    def __init__(self, address: str | None = None, **remote_options: Any) -> None:
        if address is not None and ray.is_initialized():
            raise ValueError(
                f"address is {address!r}, but this process is connected to a Ray cluster already. Leave the address "
                "out to use that cluster, or call ray.shutdown() first."
            )
        super().__init__(MOST_CALLS)
        task = ray.remote(_call)
        self._task = task.options(**remote_options) if remote_options else task
        self._has_connected = not ray.is_initialized()
        if self._has_connected:
            self._sigterm = signal.getsignal(signal.SIGTERM)
            ray.init(address)

    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> Future[R]:
        """Run ``fn`` with ``args`` and ``kwargs`` as a task, and return the future of its result."""
        return super().submit(_result, self._task, fn, args, kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more calls; wait for those that are not finished, or cancel those that have not begun.

        With ``cancel_futures=True`` calls that have not begun are cancelled; with ``wait=False`` this returns at once.
        A connection that this executor made is closed only after waiting, because that ends all its tasks.
        """
        super().shutdown(wait, cancel_futures=cancel_futures)
        if wait and self._has_connected:
            self._has_connected = False
            ray.shutdown()
            _restore_sigterm(self._sigterm)


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


def _result(task: Any, *call: Any) -> Any:
    """What a task returns. An error of its function is raised as it is, and not as Ray's."""
    try:
        return ray.get(task.remote(*call))
    except ray.exceptions.RayTaskError as error:
        if not isinstance(error.cause, Exception):
            raise
        raise error.cause from error


class RayWorkers:
    """Workers of a Loader that are actors of a Ray cluster, on any of its nodes.

        ray.init()
        loader = midepoch.Loader(dataset, batch_size=32, num_workers=16, workers=RayWorkers(num_cpus=1))

    Order, batches and states are those of processes, and a state of one loads into the other. An actor that dies, alone
    or with its node, is started again, ``worker_restarts`` times of the Loader. No actor outlives its Loader or
    the process of the loop. The process must be connected to the cluster before the loop, by ``ray.init``; that of a
    Ray Train worker is.

    ``num_cpus`` and ``actor_options`` are those of ``ray.remote``, for each worker: resources, num_gpus, memory,
    runtime_env, scheduling_strategy … If all nodes together have no room for the workers, the loop raises at once; if a
    worker has not started after ``start_timeout`` seconds, because others use the resources, it raises then.
    """

    def __init__(self, *, num_cpus: float = 1, start_timeout: float = 60, **actor_options: Any) -> None:
        if own := sorted({*actor_options} & OWN_OPTIONS):
            raise ValueError(
                f"RayWorkers sets {', '.join(own)} itself: its actors end with the Loader, and the Loader starts them "
                "again. Leave it out."
            )
        self._options: dict[str, Any] = {"num_cpus": num_cpus, **actor_options}
        self._start_timeout = start_timeout
        ray.remote(**self._options)(_Any)  # which checks the options

    def __repr__(self) -> str:
        return f"RayWorkers({', '.join(f'{name}={value!r}' for name, value in self._options.items())})"

    def starter(self, settings: "WorkerSettings") -> "Callable[[int], Worker]":
        """What starts worker number ``n``: the Loader calls this with the ``settings`` of its workers.

        The dataset and its functions travel once, for all of them.
        """
        from midepoch.integrations.ray_worker import RayWorker
        from midepoch.workers.process import check_functions

        if not ray.is_initialized():
            raise RuntimeError(
                "RayWorkers needs a connection to a Ray cluster. Call ray.init(address=...) before the loop; without "
                "an address it starts a cluster on this machine."
            )
        self._check_room(settings.workers)
        check_functions(
            settings.plan,
            ray.cloudpickle.dumps,
            to="workers of Ray",
            remedy="Let it open files, locks and connections itself, when it is first called.",
        )
        return partial(RayWorker, self._options, self._start_timeout, ray.put(settings), settings)

    def _check_room(self, workers: int) -> None:
        """Raise if all nodes together have no room for so many workers, even if nobody else uses them."""
        asked = {"CPU": self._options["num_cpus"], "GPU": self._options.get("num_gpus")}
        asked |= {"memory": self._options.get("memory"), **(self._options.get("resources") or {})}
        wanted = {name: amount for name, amount in asked.items() if amount}
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        room = sum(min(int(node.get(name, 0) / amount) for name, amount in wanted.items()) for node in nodes if wanted)
        if wanted and room < workers:
            kinds = "; ".join(_in_words({name: node.get(name, 0) for name in wanted}) for node in nodes)
            raise ValueError(
                f"The Ray cluster has room for {room} of {workers} workers. Each wants {_in_words(wanted)}; its nodes "
                f"have: {kinds}. Use fewer workers, ask for less, or add nodes. Ask an autoscaler for nodes before the "
                "loop, by ray.autoscaler.sdk.request_resources()."
            )


class _Any:
    """A class of which Ray makes an actor's."""


def _in_words(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in resources.items())


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
