"""Work on real local clusters of Dask and Ray, and on a process pool, also if a worker is killed in the middle.

All tests of clusters are in this module, so that each test process starts at most one of each.
"""

import multiprocessing
import os
import subprocess
import sys
import tempfile
import traceback
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import jobs
import midepoch as me
import s3
from midepoch._common import jobs as jobs_module
from midepoch._common.jobs import run_all
from midepoch.counting import survey
from worlds import FORMATS, TEXTS, ids, write_files

TESTS = Path(__file__).parents[1]
SQUARES = [(number, number * number) for number in range(40)]
SIZES = [35, 1, 50, 20, 3, 17, 28, 9]
ROWS = list(range(sum(SIZES)))


@pytest.fixture(scope="module")
def dask():
    from distributed import Client, LocalCluster

    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(
            n_workers=2, threads_per_worker=1, memory_limit=None, dashboard_address=":0", local_directory=folder
        ) as cluster,
        Client(cluster) as client,
        client.get_executor() as executor,
    ):
        yield executor


@pytest.fixture(scope="module")
def ray_cluster():
    import ray

    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(TESTS), before])
    try:
        ray.init(
            "local",
            num_cpus=2,
            object_store_memory=80 << 20,
            include_dashboard=False,
            log_to_driver=False,
        )
        yield ray.get_runtime_context().gcs_address
    finally:
        ray.shutdown()
        os.environ["PYTHONPATH"] = before


@pytest.fixture(scope="module")
def ray(ray_cluster):
    from midepoch.integrations.ray import RayExecutor

    with RayExecutor(num_cpus=1) as executor:
        yield executor


@pytest.fixture
def processes():
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as executor:
        yield executor


@pytest.fixture(params=["processes", "dask", "ray"])
def executor(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(params=["dask", "ray"])
def cluster(request):
    return request.getfixturevalue(request.param)


def test_every_job_is_done_once(executor):
    assert sorted(run_all(jobs.square, range(40), executor)) == SQUARES


def test_a_killed_worker_changes_no_result(cluster, tmp_path):
    assert sorted(run_all(jobs.KillOnce(11, tmp_path), range(40), cluster)) == SQUARES
    assert (tmp_path / "killed-11").exists()


def test_a_job_that_kills_every_worker_is_an_error_that_says_what_to_do(cluster):
    with pytest.raises(RuntimeError, match=r"died with 1 job of 1 unfinished \((KilledWorker|WorkerCrashed).* memory"):
        list(run_all(jobs.kill, [1], cluster))
    assert sorted(run_all(jobs.square, range(40), cluster)) == SQUARES


def test_the_error_of_a_job_keeps_its_type_words_and_notes(executor, tmp_path):
    with pytest.raises(ValueError, match="no good") as caught:
        list(run_all(jobs.RaiseAt(7, tmp_path), range(40), executor))
    assert caught.value.args == ("number 7", "no good")
    assert caught.value.__notes__ == ["a note"]
    assert type(caught.value) is ValueError


def index_bytes(folder):
    (index,) = folder.glob("*.index")
    return index.read_bytes()


def test_an_index_built_by_workers_is_that_built_here(executor, tmp_path):
    folder = write_files(tmp_path / "data", SIZES, (*FORMATS, *TEXTS, "orc"))
    rows = ids(me.read(folder, index_dir=tmp_path / "here"))
    assert ids(me.read(folder, index_dir=tmp_path / "there", executor=executor)) == rows == ROWS
    assert index_bytes(tmp_path / "there") == index_bytes(tmp_path / "here")


def test_an_index_is_the_same_if_a_worker_was_killed(cluster, tmp_path):
    folder = write_files(tmp_path / "data", SIZES, FORMATS)
    killing = jobs.KillsOne(cluster, tmp_path)
    assert ids(me.read(folder, index_dir=tmp_path / "there", executor=killing)) == ROWS
    assert killing.has_killed
    me.read(folder, index_dir=tmp_path / "here")
    assert index_bytes(tmp_path / "there") == index_bytes(tmp_path / "here")


def test_a_broken_file_is_named(executor, tmp_path):
    folder = write_files(tmp_path / "data", SIZES, ["parquet"])
    broken = sorted(folder.iterdir())[3]
    broken.write_bytes(broken.read_bytes()[:-5])
    with pytest.raises(me.DataFormatError, match=broken.name):
        me.read(folder, executor=executor)


def test_workers_read_a_store_and_secrets_stay_in_memory(executor, tmp_path, s3_port, proxy, capfd, caplog):
    folder = write_files(tmp_path / "data", SIZES, ["parquet"])
    bucket = f"clusters-{type(executor).__name__.lower()}"
    s3.put_all(s3_port, bucket, {f"data/{path.name}": path.read_bytes() for path in folder.iterdir()})
    url, options = f"s3://{bucket}/data", proxy.options | {"secret": "a-secret-that-must-not-leak"}
    assert ids(me.read(url, storage_options=options, index_dir=tmp_path / "kept", executor=executor)) == ROWS
    s3.put_all(s3_port, bucket, {"data/zz.parquet": b"PAR1 and no more"})
    with pytest.raises(me.DataFormatError, match=r"zz\.parquet") as caught:
        me.read(url, storage_options=options, executor=executor)
    shown = "".join([*capfd.readouterr(), caplog.text, *traceback.format_exception(caught.value)])
    assert "a-secret" not in shown
    assert b"a-secret" not in index_bytes(tmp_path / "kept")


@pytest.fixture(params=["default", "dask", "ray"])
def surviving(request, monkeypatch):
    """An executor that survives the death of a worker, or None for the default; and units of a few rows."""
    monkeypatch.setattr(survey, "SMALLEST_UNIT", 100)
    monkeypatch.setattr(jobs_module, "usable_cores", lambda: 2)
    return None if request.param == "default" else request.getfixturevalue(request.param)


@pytest.fixture
def killing(tmp_path):
    """Rows of which one, in the middle, kills the first other process that maps it."""
    for file in range(4):
        rows = range(50 * file, 50 * file + 50)
        markers = [str(tmp_path / "killed") if row == 117 else None for row in rows]
        (tmp_path / "data").mkdir(exist_ok=True)
        table = pa.table({"id": rows, "marker": pa.array(markers, pa.string()), "caller": [os.getpid()] * 50})
        pq.write_table(table, tmp_path / "data" / f"{file}.parquet", row_group_size=10)
    return me.read(tmp_path / "data").map(jobs.tokens_once_killed).filter(jobs.has_tokens)


def contents(folder):
    """All files below a folder but hidden ones, which a killed process may leave."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.startswith(".")]
    return {path.name: path.read_bytes() for path in files}


def items(packs):
    return [pack["tokens"].tolist() for pack in packs]


def test_E2_a_survey_is_the_same_if_a_worker_was_killed(surviving, killing, tmp_path):
    surveyed = killing.pack(16, column="tokens").survey(executor=surviving, folder=tmp_path / "there")
    assert (tmp_path / "killed").exists()
    with ThreadPoolExecutor(1) as here:
        alone = killing.pack(16, column="tokens").survey(executor=here, folder=tmp_path / "here")
    assert len(contents(tmp_path / "here")) > 1
    assert contents(tmp_path / "there") == contents(tmp_path / "here")
    assert items(surveyed) == items(alone) == items(killing.pack(16, column="tokens"))


def test_E2_a_cache_is_the_same_if_a_worker_was_killed(surviving, killing, tmp_path):
    cached = killing.cache(tmp_path / "there", executor=surviving)
    assert (tmp_path / "killed").exists()
    with ThreadPoolExecutor(1) as here:
        killing.cache(tmp_path / "here", executor=here)
    assert len(contents(tmp_path / "here")) > 4
    assert contents(tmp_path / "there") == contents(tmp_path / "here")
    assert list(cached) == list(killing)


CONNECT = """
import sys, ray, jobs
from midepoch.integrations.ray import RayExecutor

with RayExecutor(sys.argv[1], num_cpus=1) as executor:
    print(list(executor.map(jobs.square, range(5))), ray.is_initialized())
print(ray.is_initialized())
"""


def test_a_ray_executor_connects_to_a_cluster_and_disconnects(ray_cluster):
    done = subprocess.run([sys.executable, "-c", CONNECT, ray_cluster], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["[0, 1, 4, 9, 16] True", "False"]


def test_a_ray_executor_does_not_leave_the_cluster_that_it_found(ray_cluster):
    import ray

    from midepoch.integrations.ray import RayExecutor

    with RayExecutor() as executor:
        future = executor.submit(jobs.square, 4)
    assert future.result() == 16
    assert ray.is_initialized()
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(jobs.square, 4)
    with pytest.raises(ValueError, match=r"connected to a Ray cluster already\. Leave the address"):
        RayExecutor("somewhere:6379")
