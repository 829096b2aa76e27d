"""Workers of a Loader that are actors of a real Ray cluster: one on this machine, of several nodes, for all tests."""

import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from types import ModuleType

import pytest

import midepoch as me
import ranks
from midepoch.integrations.ray import RayWorkers
from worlds import write_files

ray = pytest.importorskip("ray")

SIZES = [90, 60, 70]
STORE = 80 << 20


@pytest.fixture(scope="module")
def cluster():
    """A cluster whose head has no resources. All connect to it, and it gets nodes when tests want some."""
    from ray.cluster_utils import Cluster

    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ranks.TESTS), before])
    head = {"num_cpus": 0, "object_store_memory": STORE, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        cluster.add_node(num_cpus=2, object_store_memory=STORE, resources={"decoding": 2, "killing": 1})
        ray.init(cluster.address, log_to_driver=False, logging_level="ERROR")
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()
        os.environ["PYTHONPATH"] = before


@pytest.fixture
def files(tmp_path):
    return write_files(tmp_path / "data", SIZES)


def workers(amount=1, **options):
    return RayWorkers(num_cpus=0, resources={"decoding": amount}, **options)


def with_states(loader):
    batches = iter(loader)
    return [(repr(batch), batches.state_dict()["cursors"]) for batch in batches]


def wait_until_free(resource="decoding", amount=2):
    end = time.monotonic() + 60
    while ray.available_resources().get(resource, 0) < amount:
        assert time.monotonic() < end, "an actor is left"
        time.sleep(0.1)


def train(config):
    """What a trainer of Ray Train does: it logs the rows that its rank gets of workers on other nodes."""
    import ray.train

    loader = me.Loader(me.read(config["files"]).shuffle(1).shard(), batch_size=2, num_workers=1, workers=workers())
    with open(f"{config['log']}-{ray.train.get_context().get_world_rank()}", "w") as log:
        log.writelines(f"{row}\n" for batch in loader if not loader.is_padding for row in batch["id"].tolist())
    loader.close()


def same(row):
    return row


def is_kept(row):
    return row["id"] % 3 != 1


def as_tokens(row):
    return {"id": row["id"], "input_ids": [row["id"]] * (1 + row["id"] % 7)}


def die_once(folder, row):
    """End the process at some rows, once at each."""
    if row["id"] % 100 == 7:
        try:
            os.mkdir(folder / str(row["id"]))
        except FileExistsError:
            return row
        os.kill(os.getpid(), signal.SIGKILL)
    return row


def slowly(row):
    time.sleep(0.02)
    return row


KINDS = {
    "rows": lambda rows: rows,
    "packs": lambda rows: rows.filter(is_kept).map(as_tokens).pack(32, window=20),
}


@pytest.mark.parametrize("kind", KINDS)
def test_no_batch_and_no_state_differs_if_actors_die(cluster, files, tmp_path, kind):
    (tmp_path / "died").mkdir()
    rows = me.read(files).shuffle(1)
    here = KINDS[kind](rows.map(same)).lanes(2)
    there = KINDS[kind](rows.map(partial(die_once, tmp_path / "died"))).lanes(2)
    loader = me.Loader(there, batch_size=2, num_workers=2, workers=workers(), persistent_workers=True)
    for epoch in range(2):
        here.set_epoch(epoch)
        assert with_states(loader) == with_states(me.Loader(here, batch_size=2))
        if epoch == 0:
            assert len(os.listdir(tmp_path / "died")) == 3
            assert loader.metrics()["restarts"] == 3
    loader.close()
    wait_until_free()


def test_a_node_that_is_lost_changes_no_batch_and_new_nodes_get_its_workers(cluster, files):
    whole = [row["id"] for row in me.Loader(me.read(files).shuffle(1).lanes(3))]
    lost = cluster.add_node(num_cpus=0, object_store_memory=STORE, resources={"node": 2})
    on_nodes = RayWorkers(num_cpus=0, resources={"node": 1})
    loader = me.Loader(
        me.read(files).shuffle(1).lanes(3).map(slowly), num_workers=2, prefetch_factor=2, workers=on_nodes
    )
    got = []
    for row in loader:
        got.append(row["id"])
        if len(got) == 50:
            cluster.remove_node(lost)
            lost = cluster.add_node(num_cpus=0, object_store_memory=STORE, resources={"node": 2})
    assert got == whole
    assert loader.metrics()["restarts"] == 2
    cluster.remove_node(lost)


def test_a_state_goes_from_actors_to_processes_and_back(cluster, files):
    dataset = me.read(files).shuffle(1).lanes(4).filter(is_kept)
    whole = [batch["id"].tolist() for batch in me.Loader(dataset, batch_size=4)]
    got, state = [], None
    for leg, options in enumerate([{}, {"num_workers": 2, "workers": workers()}, {"num_workers": 1}]):
        loader = me.Loader(dataset, batch_size=4, **options)
        if state is not None:
            loader.load_state_dict(state)
        for number, batch in enumerate(loader):
            got.append(batch["id"].tolist())
            if number == 7 + leg and leg < 2:
                break
        state = loader.state_dict()
        loader.close()
    assert got == whole


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning", "ignore:.*:FutureWarning")
def test_trainers_on_some_nodes_have_their_workers_on_others(cluster, files, tmp_path):
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    node = cluster.add_node(num_cpus=3, object_store_memory=STORE, resources={"training": 2})
    TorchTrainer(
        train,
        train_loop_config={"files": str(files), "log": str(tmp_path / "rows")},
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1, "training": 1}),
        run_config=RunConfig(storage_path=str(tmp_path / "storage")),
        torch_config=TorchConfig(backend="gloo"),
    ).fit()
    rows = [[*map(int, (tmp_path / f"rows-{rank}").read_text().split())] for rank in range(2)]
    for rank in range(2):
        here = me.Loader(me.read(files).shuffle(1).shard(2, rank).lanes(2), batch_size=2)
        whole = [row for batch in here if not here.is_padding for row in batch["id"].tolist()]
        assert rows[rank] == whole
    cluster.remove_node(node)


def test_no_actor_outlives_its_loader_or_its_driver(cluster, files):
    wait_until_free()
    loader = me.Loader(me.read(files), num_workers=2, workers=workers())
    batches = iter(loader)
    next(batches)
    assert ray.available_resources().get("decoding", 0) == 0
    del loader, batches
    wait_until_free()
    script = [sys.executable, str(ranks.TESTS / "ray_driver.py"), cluster.address, str(files), "decoding"]
    with subprocess.Popen(script, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as driver:
        assert driver.stdout.readline() == "reads\n"
        assert ray.available_resources().get("decoding", 0) == 0
        driver.kill()
    wait_until_free()


def test_what_is_too_large_for_the_cluster_is_an_error_and_no_wait(cluster, files):
    dataset = me.read(files)
    with pytest.raises(ValueError, match=r"room for 2 of 3 workers. Each wants 1 decoding; its nodes have: .*2 decod"):
        next(iter(me.Loader(dataset, num_workers=3, workers=workers())))
    with pytest.raises(ValueError, match=r"room for 0 of 1 workers. Each wants 1 CPU, 8 GPU"):
        next(iter(me.Loader(dataset, num_workers=1, workers=RayWorkers(num_gpus=8))))
    busy = iter(me.Loader(dataset, num_workers=2, workers=workers()))
    next(busy)
    late = me.Loader(dataset, num_workers=1, workers=workers(start_timeout=0.5), persistent_workers=True)
    with pytest.raises(RuntimeError, match=r"0 of 1 has not started within 0\.5 seconds.*free are"):
        next(iter(late))
    del busy, late
    wait_until_free()


def test_what_cannot_be_sent_or_found_names_the_remedy(cluster, files):
    dataset, lock = me.read(files), threading.Lock()

    def locked(row):
        return lock and row

    with pytest.raises(TypeError, match=r"locked cannot be sent to workers of Ray: .*lock.* when it is first called"):
        next(iter(me.Loader(dataset.map(locked), num_workers=1, workers=workers())))
    sys.modules["only_here"] = here = ModuleType("only_here")
    try:
        exec("def function(row): return row", vars(here))
        with pytest.raises(RuntimeError, match="No module named 'only_here'") as caught:
            next(iter(me.Loader(dataset.map(here.function), num_workers=1, workers=workers())))
    finally:
        del sys.modules["only_here"]
    assert "runtime_env={'working_dir': '.'}" in caught.value.__notes__[0]
    files.rename(files.parent / "elsewhere")
    with pytest.raises((FileNotFoundError, me.DataChangedError)) as caught:
        next(iter(me.Loader(dataset, num_workers=1, workers=workers())))
    assert "at the same paths: use a store" in caught.value.__notes__[-1]
    wait_until_free()


def test_bad_arguments_are_errors_where_they_are_passed(files):
    dataset = me.read(files)
    with pytest.raises(ValueError, match="RayWorkers sets lifetime itself"):
        RayWorkers(lifetime="detached")
    with pytest.raises(ValueError, match="num_workers how many"):
        me.Loader(dataset, workers=workers())
    with pytest.raises(ValueError, match="leave out workers"):
        me.Loader(dataset, num_workers=1, workers=workers(), multiprocessing_context="spawn")
    with pytest.raises(TypeError, match="cannot start workers"):
        me.Loader(dataset, num_workers=1, workers=4)


def test_without_a_connection_the_error_says_how_to_connect(files, monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(RuntimeError, match=r"Call ray\.init"):
        next(iter(me.Loader(me.read(files), num_workers=1, workers=workers())))
