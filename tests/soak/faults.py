"""Killing and stalling what a leg consists of."""

import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import s3
from soak.draws import Fault
from soak.processes import LEG, actors, marked, send, workers_of

STORE: dict[str, Sequence[int | str]] = {"store answers 503": [503, 429], "store drops": ["drop", "cut"]}


class Faults:
    """The faults of a leg under way. Each happens at its step; what is stalled goes on after some seconds."""

    def __init__(
        self, faults: Sequence[Fault], folder: Path, token: str, proxy: s3.Proxy | None, *, cluster: str | None
    ) -> None:
        """``folder`` is that of the leg, and ``token`` marks its processes; ``cluster`` those of Ray, if it is used."""
        self._due = list(faults)
        self._folder, self._token, self._proxy, self._cluster = folder, token, proxy, cluster
        self._reached: float | None = None
        """When the step of the next fault was reached."""
        self._thaws: list[tuple[float, Callable[[], None]]] = []
        self.happened: list[str] = []

    def step(self) -> None:
        """Let happen what is due."""
        now = time.monotonic()
        for thaw in [one for one in self._thaws if one[0] <= now]:
            self._thaws.remove(thaw)
            thaw[1]()
        if not self._due:
            return
        if self._reached is None and self._steps_of_rank_0() >= self._due[0].step:
            self._reached = now
        if self._reached is not None and now >= self._reached + self._due[0].delay:
            self._reached = None
            fault = self._due.pop(0)
            if self._make(fault, now):
                self.happened.append(fault.kind)

    def end(self) -> None:
        """Let what is stalled go on."""
        for _, thaw in self._thaws:
            thaw()
        self._thaws.clear()

    def _steps_of_rank_0(self) -> int:
        log = self._folder / "rows-0.jsonl"
        return log.read_bytes().count(b"\n") - 1 if log.exists() else -1

    def _process(self, rank: int) -> int | None:
        """The process of a rank, if it has started to read."""
        log = self._folder / f"rows-{rank}.jsonl"
        first, newline, _ = log.read_text().partition("\n") if log.exists() else ("", "", "")
        return int(first.strip("[]").split(",")[1]) if newline else None

    def _make(self, fault: Fault, now: float) -> bool:
        """Let a fault happen. False if there is nobody to whom it could."""
        if fault.kind.startswith("store"):
            return self._spoil(fault, now)
        rank = self._process(fault.rank)
        if fault.kind == "all ranks killed":
            self.end()
            for process in marked(LEG, self._token):
                send(process, signal.SIGKILL)
            return True
        process = rank
        if fault.kind.startswith("worker"):
            workers = actors(self._cluster) if self._cluster else workers_of(rank) if rank else []
            process = workers[fault.worker % len(workers)] if workers else None
        if process is None:
            return False
        if fault.kind.endswith("stalled"):
            send(process, signal.SIGSTOP)
            stalled = process
            self._thaws.append((now + fault.seconds, lambda: send(stalled, signal.SIGCONT)))
        else:
            self.end()  # the launcher waits for ranks that are stalled
            send(process, signal.SIGKILL)
        return True

    def _spoil(self, fault: Fault, now: float) -> bool:
        assert self._proxy is not None
        proxy = self._proxy
        if fault.kind == "store slow":
            proxy.latency = 0.2
        elif fault.kind in STORE:
            proxy.spoil = s3.now_and_then(STORE[fault.kind], 0.4)
        else:
            proxy.spoil = lambda _: 503

        def heal() -> None:
            proxy.spoil, proxy.latency = None, 0.0

        if fault.kind != "store gone":
            self._thaws.append((now + fault.seconds, heal))
        return True
