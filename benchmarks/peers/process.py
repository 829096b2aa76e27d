"""This side of a contender's process: starts it, asks it, and reports whatever goes wrong."""

import json
import os
import select
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
END_SECONDS = 10.0


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))


class Process:
    """A contender's process. It is started when it is first asked."""

    def __init__(self, name: str, python: Path, log: Path, module: str = "benchmarks.peers.child") -> None:
        self.name, self.python, self.log, self.module = name, python, log, module
        self._running: subprocess.Popen[str] | None = None

    def ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """The answer, or ``{"error": …}`` where the process dies, cannot be started or does not answer in time."""
        try:
            running = self._running = self._running or self._start()
            assert running.stdin is not None
            running.stdin.write(json.dumps(request) + "\n")
            running.stdin.flush()
        except OSError as error:
            self.stop()
            return {"error": f"its process cannot be reached: {error}"}
        assert running.stdout is not None
        answers = select.poll()  # select.select knows only the first 1,024 files of a process
        answers.register(running.stdout, select.POLLIN)
        if not answers.poll(1000 * seconds):
            self.stop()
            return {"error": f"no answer in {seconds:.0f} s"}
        line = running.stdout.readline()
        if not line:
            ended = running.wait()
            self.stop()
            return {"error": f"its process ended with {ended}; see {self.log.name}"}
        answer: dict[str, Any] = json.loads(line)
        return answer

    def stop(self) -> None:
        """End the process and its workers: without requests it does so itself. If it does not soon, all are killed.

        The first leaves Python's resource tracker alive, which then removes what is left in shared memory.
        """
        running, self._running = self._running, None
        if running is None:
            return
        assert running.stdin is not None
        assert running.stdout is not None
        with suppress(OSError):
            running.stdin.close()
        try:
            running.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            running.wait()
        running.stdout.close()

    def _start(self) -> subprocess.Popen[str]:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        paths = [str(ROOT), *([str(ROOT / "src")] if self.name == "midepoch" else [])]
        # Python keeps what it compiles, as of an installed package, so that no start has to compile again.
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        with open(self.log, "a") as log:
            return subprocess.Popen(
                [str(self.python), "-m", self.module, self.name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
                env={**inherited, "PYTHONPATH": os.pathsep.join(paths)},
                start_new_session=True,
            )
