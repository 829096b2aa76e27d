"""A worker of a Loader that is an actor of Ray: what the actor runs, and what the main process has of it.

They talk as with a process (:mod:`midepoch.workers.process`), by calls of the actor. The items of a message are one
array, which goes from the shared memory of the actor to the object store, and from there to this machine.
"""

import os
import pickle
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
import ray

from midepoch.errors import DataChangedError
from midepoch.workers.interface import Message, WorkerDiedError, WorkerSettings
from midepoch.workers.process import MessageWorker, Report, run_worker
from midepoch.workers.ring import SharedMemory

CALLS = 4
"""How many messages of a worker are asked for at a time, so that none waits for the network."""
Reply = tuple[int, bytes, Any]
"""The number of what the worker sent, counted from its start; what it sent; and the items, as an array of bytes."""


class WorkerHost:
    """A worker in a thread of an actor. All calls have numbers: Ray does not promise their order."""

    def __init__(self, settings: WorkerSettings, number: int) -> None:
        self._connection, of_worker = Pipe()
        self._memory = SharedMemory()
        self._told, self._early = 0, dict[int, bytes]()
        self._sent = 0
        self._thread = threading.Thread(target=self._run, args=(settings, number, of_worker), daemon=True)
        self._thread.start()

    def _run(self, settings: WorkerSettings, number: int, connection: Connection) -> None:
        with connection:  # so that a call that waits for more raises when the worker has ended
            run_worker(settings, number, connection, self._memory)

    def tell(self, number: int, content: bytes) -> None:
        """Give something to the worker, when it has got all that has smaller numbers."""
        self._early[number] = content
        while self._told in self._early:
            self._connection.send_bytes(self._early.pop(self._told))
            self._told += 1

    def receive(self) -> Reply:
        """What the worker sends next. The first reply comes at once and says where the worker is."""
        number, self._sent = self._sent, self._sent + 1
        if number == 0:
            return number, f"pid {os.getpid()} on node {ray.util.get_node_ip_address()}".encode(), None
        content = self._connection.recv_bytes()
        report = Report(*pickle.loads(content))
        items = self._memory.view(report.start, report.start + report.size)
        return number, content, np.frombuffer(items, np.uint8) if report.size else None

    def stop(self) -> None:
        """Let the worker end after the item that it makes, and wait for that."""
        self._connection.send_bytes(pickle.dumps(None))
        self._thread.join()


class RayWorker(MessageWorker):
    """A worker that is an actor. It ends with the process that started it, however that ends."""

    def __init__(
        self, options: Mapping[str, Any], start_timeout: float, reference: Any, settings: WorkerSettings, number: int
    ) -> None:
        """Start an actor with ``options`` of Ray. It gets the settings by their ``reference`` in the object store."""
        super().__init__(settings, number)
        self._options, self._begun, self._start_timeout = options, time.monotonic(), start_timeout
        self._told = self._next = 0
        self._where: str | None = None  # once it has started
        self._error: Exception | None = None  # that says how it ended
        self._early: dict[int, Reply] = {}
        self._items = memoryview(b"")
        self._end: Any = None
        host: Any = ray.remote(concurrency_groups={"receive": 1})(WorkerHost)
        self._actor = host.options(**options).remote(reference, number)
        self._replies: SimpleQueue[Future[Reply]] = SimpleQueue()
        for _ in range(CALLS):
            self._ask()

    def _ask(self) -> None:
        reply = self._actor.receive.options(concurrency_group="receive").remote()
        reply.future().add_done_callback(self._replies.put)  # Ray brings it to this machine meanwhile

    def _send(self, content: bytes) -> None:
        self._actor.tell.remote(self._told, content)
        self._told += 1

    def _view(self, start: int, size: int) -> memoryview:
        return self._items

    def _read(self, seconds: float) -> bytes | None:
        if seconds:
            self.tell_received()
        end = time.monotonic() + seconds
        while self._error is None:
            if (reply := self._early.pop(self._next, None)) is not None:
                self._next += 1
                _, content, items = reply
                if items is not None:
                    self._items = memoryview(items)
                return content
            try:
                left = end - time.monotonic()
                self._take(self._replies.get(timeout=left) if left > 0 else self._replies.get_nowait())
            except Empty:
                if seconds:
                    self._check_started()
                return None
        if seconds:
            raise self._death()
        return None

    def _take(self, future: "Future[Reply]") -> None:
        """Note a reply, or that there will be no more, and ask for one more."""
        try:
            reply = future.result()
        except Exception as error:  # Ray's, of many classes: the actor, its node or the network is gone
            self._error = error
            return
        self._ask()
        if reply[0]:
            self._early[reply[0]] = reply
        else:
            self._where, self._next = reply[1].decode(), self._next + 1

    def _check_started(self) -> None:
        if self._where is None and time.monotonic() - self._begun > self._start_timeout:
            raise RuntimeError(
                f"{self.name} has not started within {self._start_timeout:g} seconds. It asks Ray for "
                f"{dict(self._options)}; free are {ray.available_resources()}. Use fewer workers, ask for less, add "
                "nodes, or pass RayWorkers(start_timeout=...) if nodes take longer to come. Nothing is lost: the "
                "loader's state is that of the last batch received."
            )

    def receive(self, seconds: float) -> Message | None:
        """The next message since the start. An error about a file that is not there says where the worker is."""
        message = super().receive(seconds)
        if message is not None and isinstance(message.error, FileNotFoundError | DataChangedError):
            message.error.add_note(
                f"midepoch: it was {self.name} ({self._where}). Workers of Ray open files on their nodes, at the "
                "same paths: use a store or a folder that all nodes share."
            )
        return message

    def _death(self) -> WorkerDiedError:
        text = str(self._error).strip()
        remedy = ""
        if self._where is None and not isinstance(self._error, ray.exceptions.ActorUnavailableError):
            remedy = (
                " It could not start. Its node needs midepoch, ray and the modules of your functions, in your "
                "versions: install them there, or pass RayWorkers(runtime_env={'working_dir': '.'})."
            )
        return WorkerDiedError(
            f"The Ray actor of {self.name} has ended. {text}",
            who=f"{self.name} ({self._where or 'which had not started'})",
            reads=f" Ray says: {text.splitlines()[-1].partition(' Some common causes')[0].strip()}" if text else "",
            remedy=remedy,
        )

    def stop(self) -> None:
        """Let the worker end after the item that it makes."""
        if self._where is not None and ray.is_initialized():
            self._end = self._actor.stop.remote()

    def free(self, deadline: float) -> None:
        """Wait for the end of the worker until a time, and kill its actor."""
        with suppress(Exception):  # Ray's, of many classes: the connection is closed, or the actor is gone
            if self._end is not None:
                ray.wait([self._end], timeout=max(0.0, deadline - time.monotonic()))
            ray.kill(self._actor)
