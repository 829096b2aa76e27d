"""Jobs on executors and in processes, the progress bar, and the time that work takes."""

import io
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

import jobs
from midepoch._common import jobs as jobs_module
from midepoch._common.jobs import DEATHS_OF_A_RUN, ProgressBar, run_all

TESTS = Path(__file__).parents[2]
SQUARES = {number: number * number for number in range(20)}


@pytest.fixture
def two_cores(monkeypatch):
    monkeypatch.setattr(jobs_module, "usable_cores", lambda: 2)


def test_the_caller_hears_while_no_job_finishes():
    heard = threading.Event()
    with ThreadPoolExecutor(1) as executor:
        assert list(run_all(lambda job: heard.wait(), ["job"], executor, heard.set)) == [("job", True)]


def test_by_default_other_processes_run_the_jobs(two_cores):
    pairs = list(run_all(jobs.square_and_process, range(20)))
    assert sorted((job, result) for job, (result, _) in pairs) == sorted(SQUARES.items())
    assert os.getpid() not in {process for _, (_, process) in pairs}


@pytest.mark.parametrize("make", [ProcessPoolExecutor, None])
def test_a_process_loads_the_function_once(two_cores, tmp_path, make):
    executor = make and make(2)
    assert sorted(run_all(jobs.SquareAndTrace(tmp_path), range(20), executor)) == sorted(SQUARES.items())
    assert 1 <= len(list(tmp_path.iterdir())) <= 2
    if executor:
        executor.shutdown()


@pytest.mark.parametrize(("cores", "count"), [(1, 5), (2, 1), (2, 0)])
def test_one_core_or_one_job_needs_no_other_process(monkeypatch, cores, count):
    monkeypatch.setattr(jobs_module, "usable_cores", lambda: cores)
    pairs = list(run_all(jobs.square_and_process, range(count)))
    assert pairs == [(job, (job * job, os.getpid())) for job in range(count)]


class AtOnce(Executor):
    """Runs each job when it is submitted, and counts them."""

    submitted = 0

    def submit(self, call, job):
        self.submitted += 1
        future = Future()
        future.set_result(call(job))
        return future


def test_no_more_jobs_are_submitted_than_may_be_in_flight(monkeypatch):
    monkeypatch.setattr(jobs_module, "IN_FLIGHT", 3)
    executor = AtOnce()
    results = run_all(jobs.square, range(10), executor)
    submitted = [(next(results)[0], executor.submitted) for _ in range(10)]
    assert submitted == [(0, 3), (1, 4), (2, 5), (3, 6), (4, 7), (5, 8), (6, 9), (7, 10), (8, 10), (9, 10)]


def test_jobs_of_a_killed_process_are_run_again(two_cores, tmp_path, caplog):
    pairs = list(run_all(jobs.KillOnce(7, tmp_path), range(20)))
    assert sorted(pairs) == sorted(SQUARES.items())
    assert "A process was killed (BrokenProcessPool: " in caplog.text


def test_a_job_that_always_kills_its_process_is_an_error_after_some_attempts(two_cores, caplog):
    with pytest.raises(RuntimeError, match=r"killed 5 times, and 9 jobs of 9 are unfinished .* fewer processes"):
        list(run_all(jobs.kill, range(9)))
    assert caplog.text.count("A process was killed") == DEATHS_OF_A_RUN - 1


def test_a_killed_process_of_the_callers_pool_is_an_error_that_says_what_to_do():
    with ProcessPoolExecutor(2) as executor:
        with pytest.raises(RuntimeError, match=r"died with \d+ jobs of 20 unfinished .* Start a new executor"):
            list(run_all(jobs.kill, range(20), executor))
        with pytest.raises(RuntimeError, match="died with 20 jobs of 20 unfinished"):
            list(run_all(jobs.square, range(20), executor))


class KilledWorker(Exception):  # noqa: N818
    """Named as that of Dask."""

    __module__ = "distributed.scheduler"


def test_a_job_whose_worker_died_on_a_cluster_is_an_error_and_ends_the_others():
    def work(job):
        if job == 3:
            raise KilledWorker("job-3")
        return job

    with ThreadPoolExecutor(1) as executor:
        results = run_all(work, range(20), executor)
        with pytest.raises(RuntimeError, match=r"unfinished \(KilledWorker: job-3\).*more memory") as caught:
            list(results)
    assert isinstance(caught.value.__cause__, KilledWorker)


@pytest.mark.parametrize("make", [ThreadPoolExecutor, ProcessPoolExecutor, None])
def test_the_error_of_a_job_is_raised_with_its_notes_and_ends_the_run(two_cores, tmp_path, make):
    executor = make and make(1)
    with pytest.raises(ValueError, match="no good") as caught:
        list(run_all(jobs.RaiseAt(0, tmp_path), range(500), executor))
    assert caught.value.args == ("number 0", "no good")
    assert caught.value.__notes__ == ["a note"]
    if executor:
        executor.shutdown()
    assert len(list(tmp_path.iterdir())) < 500


def test_an_error_that_cannot_be_pickled_keeps_its_words_and_notes(two_cores, tmp_path):
    with pytest.raises(RuntimeError, match="UnpicklableError: number 3 and no good") as caught:
        list(run_all(jobs.RaiseAt(3, tmp_path, jobs.UnpicklableError), range(9)))
    assert caught.value.__notes__ == ["a note"]


def test_a_function_that_cannot_be_sent_runs_here_with_a_warning(two_cores, caplog):
    pairs = list(run_all(lambda job: (job * job, os.getpid()), range(5)))
    assert pairs == [(job, (job * job, os.getpid())) for job in range(5)]
    assert "cannot be sent to others" in caplog.text
    assert "top level of a module" in caplog.text


def test_a_function_that_other_processes_cannot_import_runs_here_with_a_warning(two_cores, caplog, monkeypatch):
    monkeypatch.setattr(jobs, "only_here", jobs.square_and_process.__class__(**_copied()), raising=False)
    pairs = list(run_all(jobs.only_here, range(5)))
    assert pairs == [(job, (job * job, os.getpid())) for job in range(5)]
    assert "cannot be sent to others (AttributeError: " in caplog.text


def _copied():
    source = jobs.square_and_process
    return {"code": source.__code__.replace(co_name="only_here", co_qualname="only_here"), "globals": vars(jobs)}


def processes_in(folder, number):
    """The processes of :class:`jobs.WaitUnless`, once there are as many."""
    while len(files := list(folder.glob("process-*"))) < number:
        time.sleep(0.01)
    return [int(file.name.partition("-")[2]) for file in files]


def wait_until_gone(processes):
    for process in processes:
        while Path(f"/proc/{process}").exists() and "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text():
            time.sleep(0.01)


def test_the_processes_end_when_the_caller_stops_iterating(two_cores, tmp_path):
    results = run_all(jobs.WaitUnless(0, tmp_path), range(5))
    assert next(results) == (0, 0)
    processes = processes_in(tmp_path, 2)
    results.close()
    wait_until_gone(processes)


SCRIPT = """
    import signal
    import sys
    import jobs
    from midepoch._common import jobs as jobs_module

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may ignore it for jobs in the background
    jobs_module.usable_cores = lambda: 2
    if __name__ == "__main__" or "unguarded" in sys.argv:
        for job, result in jobs_module.run_all(jobs.WaitUnless(0, sys.argv[1]), range(5)):
            print(job, result, flush=True)
"""


def start_script(folder, *arguments):
    script = folder / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    command = [sys.executable, str(script), str(folder), *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, -signal.SIGINT), (signal.SIGKILL, -signal.SIGKILL)])
def test_the_processes_end_when_the_caller_is_interrupted_or_killed(tmp_path, sent, code):
    script = start_script(tmp_path)
    processes = processes_in(tmp_path, 2)
    script.send_signal(sent)
    _, errors = script.communicate()
    assert script.returncode == code
    wait_until_gone(processes)
    assert ("KeyboardInterrupt" in errors) == (sent == signal.SIGINT)


def test_what_is_no_executor_is_refused_at_once():
    with pytest.raises(TypeError, match=r"executor is a int; .* client\.get_executor\(\)"):
        run_all(jobs.square, range(3), 4)


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test moves by hand."""

    class Clock:
        now = 100.0

        def monotonic(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(jobs_module, "time", clock)
    return clock


class Output(io.StringIO):
    def __init__(self, is_terminal):
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self):
        return self._is_terminal


@pytest.fixture
def terminal(monkeypatch):
    output = Output(is_terminal=True)
    monkeypatch.setattr(jobs_module, "sys", SimpleNamespace(stderr=output))
    return output


@pytest.fixture
def log_file(monkeypatch):
    output = Output(is_terminal=False)
    monkeypatch.setattr(jobs_module, "sys", SimpleNamespace(stderr=output))
    return output


def work(clock, seconds, *, steps=10, **options):
    with ProgressBar("copying", unit="files", total=steps, **options) as bar:
        for done in range(1, steps + 1):
            clock.now += seconds / steps
            bar.update(done)


def test_work_of_less_than_two_seconds_shows_nothing(terminal, clock):
    work(clock, 1.9)
    assert terminal.getvalue() == ""


def test_a_log_file_sees_nothing(log_file, clock):
    work(clock, 30)
    assert log_file.getvalue() == ""


def test_the_plain_line(terminal, clock):
    with ProgressBar("epoch 3", unit="rows") as bar:
        clock.now += 3
        bar.update(1500)
        clock.now += 1
        bar.update(2000, total=4000, note="7.5 batches/s")
        clock.now += 1
        bar.update(4001)
    lines = terminal.getvalue().split("\r\033[K")[1:]
    assert lines == [
        "midepoch: epoch 3 1,500 rows",
        "midepoch: epoch 3 [###############---------------] 2,000/4,000 rows, 7.5 batches/s",
        "midepoch: epoch 3 [##############################] 4,001/4,000 rows, 7.5 batches/s",
        "midepoch: epoch 3 [##############################] 4,001/4,000 rows, 7.5 batches/s\n",
    ]


def test_one_long_job_is_not_silent(terminal, clock, caplog):
    caplog.set_level(logging.INFO, "midepoch")
    with ProgressBar("indexing", unit="files", total=1) as bar:
        bar.tick()
        assert terminal.getvalue() == ""
        clock.now += 3
        bar.tick()
        assert "0/1" in terminal.getvalue()
        bar.tick()
        clock.now += 60
        bar.update(1)
    assert caplog.messages == ["indexing: 0 of 1 files so far; it goes on.", "indexing: 1 files in 63.0 s."]


def test_work_that_fails_ends_its_line_and_is_not_logged_as_finished(terminal, clock, caplog):
    caplog.set_level(logging.INFO, "midepoch")

    def fail():
        with ProgressBar("copying", unit="files", total=3) as bar:
            clock.now += 5
            bar.update(1)
            raise OSError("broken")

    with pytest.raises(OSError, match="broken"):
        fail()
    assert terminal.getvalue().endswith("\n")
    assert caplog.messages == ["copying: 1 of 3 files so far; it goes on."]
