"""The Loader with real worker processes: exact wherever it is cut, whatever changes at the resume."""

import copy
import multiprocessing
import pickle
from itertools import islice

import pytest

import midepoch as me
from files import plain
from midepoch._common.checks import log_once
from midepoch.dataset import with_launched_shard
from worlds import ids, is_kept, is_late, spread, through_json, write_files

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

SPREAD = {"batched": True, "batch_size": 5, "remove_columns": ["text", "tokens", "maybe"]}
PIPELINES = {
    "rows": lambda ds: ds,
    "batches": lambda ds: ds.batch(4),
    "filtered": lambda ds: ds.filter(is_kept),
    "late batches": lambda ds: ds.filter(is_late).batch(3),
    "spread": lambda ds: ds.map(spread, **SPREAD),
    "windows": lambda ds: ds.pack(8, column="tokens", window=16, eos=7, pad=9).with_format("numpy"),
    "stream": lambda ds: ds.pack(8, column="tokens", strategy="concat").with_format("numpy"),
    "mixture": lambda ds: me.mix({"a": ds, "b": ds.filter(is_kept)}, [2, 1], stop="all"),
}
WORKERS = [
    {"num_workers": 0},
    {"num_workers": 1},
    {"num_workers": 3, "prefetch_factor": 4},
    {"num_workers": 2, "persistent_workers": True},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("world") / "data", [20, 0, 7, 33])


@pytest.fixture
def build(folder):
    def build(pipeline, lanes=4):
        return PIPELINES[pipeline](me.read(folder).shuffle(1, window=20)).lanes(lanes)

    return build


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_C4_C5_cut_anywhere_and_resumed_twice_with_other_workers(build, pipeline):
    whole = plain(list(build(pipeline)))
    for number, cut in enumerate(range(0, len(whole) - 2, 1 + len(whole) // 4)):
        first = me.Loader(build(pipeline), **WORKERS[number % 4])
        got = list(islice(first, cut))
        second = me.Loader(build(pipeline), **WORKERS[(number + 1) % 4])
        second.load_state_dict(through_json(first.state_dict()))
        assert second.state_dict() == first.state_dict()
        got += list(islice(second, 2))
        third = me.Loader(build(pipeline), **WORKERS[(number + 2) % 4])
        third.load_state_dict(through_json(second.state_dict()))
        assert plain(got + list(third)) == whole


def test_the_state_in_the_loop_counts_the_batch_in_hand_and_no_later_one(build):
    whole = ids(build("rows"))
    loader = me.Loader(build("rows"), num_workers=2, prefetch_factor=8)
    for number, row in enumerate(loader, start=1):
        assert row["id"] == whole[number - 1]
        if number % 9 == 0:
            resumed = build("rows")
            resumed.load_state_dict(through_json(loader.state_dict()))
            assert ids(resumed) == whole[number:]


def go_on(loader):
    """Continue after the last batch of a loop that was left."""
    loader.load_state_dict(through_json(loader.state_dict()))
    return loader


def test_a_loop_that_was_left_starts_again_unless_its_state_is_loaded(build):
    whole = ids(build("filtered"))
    for workers in WORKERS:
        loader = me.Loader(build("filtered"), **workers)
        assert [ids(islice(loader, count)) for count in (5, 5)] == [whole[:5], whole[:5]]
        got = ids(islice(loader, 5))
        for count in (1, 7):
            got += ids(islice(go_on(loader), count))
        assert got + ids(go_on(loader)) == whole
        assert loader.epoch == 1


@pytest.mark.parametrize("workers", WORKERS[1:], ids=str)
def test_E5_a_peek_inside_the_training_loop_changes_no_checkpoint(build, workers):
    whole = ids(build("filtered"))
    loader, got = me.Loader(build("filtered"), **workers), []
    for number, row in enumerate(loader, start=1):
        got.append(row["id"])
        if number % 10 == 5:
            assert next(iter(loader))["id"] == whole[0]
            resumed = build("filtered")
            resumed.load_state_dict(through_json(loader.state_dict()))
            assert got + ids(resumed) == whole
    assert got == whole
    assert loader.epoch == 1


def test_E5_two_loaders_of_one_dataset_do_not_share_a_position(build):
    dataset, whole = build("rows"), ids(build("rows"))
    first, second = me.Loader(dataset, num_workers=1), me.Loader(dataset)
    got = ids(islice(first, 7))
    assert ids(second) == whole
    assert got + ids(go_on(first)) == whole
    with pytest.raises(me.UnknownStateError, match="use the Loader's state_dict"):
        dataset.state_dict()
    with pytest.raises(me.CheckpointMismatchError, match=r"Call the Loader's load_state_dict"):
        dataset.load_state_dict(first.state_dict())
    dataset.set_epoch(4)
    assert (first.epoch, second.epoch) == (4, 4)


@pytest.mark.parametrize("workers", WORKERS[1:], ids=str)
def test_E5_iterators_of_one_loader_are_independent(build, workers):
    whole = ids(build("filtered"))
    loader = me.Loader(build("filtered"), **workers)
    first, second = iter(loader), iter(loader)
    got = ids(islice(first, 5)), ids(islice(second, 9))
    got[0].extend(ids(islice(first, 2)))
    for iterator, rows in zip((first, second), got, strict=True):
        resumed = build("filtered")
        resumed.load_state_dict(through_json(iterator.state_dict()))
        assert rows + ids(resumed) == whole
    assert got[0] + ids(first) == got[1] + ids(second) == whole


def test_drop_last_leaves_out_a_batch_that_is_not_full(build):
    batches = list(build("rows").batch(7, drop_last_batch=True))
    assert plain(list(me.Loader(build("rows"), batch_size=7, drop_last=True))) == batches


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
@pytest.mark.parametrize("workers", [{}, {"num_workers": 2, "persistent_workers": True}], ids=str)
def test_a_copy_of_a_loader_has_a_position_of_its_own_and_follows_its_dataset(build, make, workers):
    epochs = [ids(build("batches").repeat(3))[60 * epoch :][:60] for epoch in range(3)]
    loader = me.Loader(build("batches"), **workers)
    assert ids(loader) == epochs[0]
    batches = iter(loader)
    got = ids([next(batches)])
    copied = make(loader)
    assert ids(copied) == epochs[1]
    assert got + ids(batches) == epochs[1]
    assert (loader.epoch, copied.epoch) == (2, 2)
    copied.set_epoch(0)
    assert (loader.epoch, copied.epoch) == (2, 0)
    copied.dataset.set_epoch(1)
    assert copied.epoch == 1
    assert ids(copied) == epochs[1]


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_other_start_methods(build, method):
    loader = me.Loader(build("filtered"), num_workers=2, multiprocessing_context=method, persistent_workers=True)
    whole = ids(build("filtered"))
    got = ids(islice(loader, 9))
    resumed = me.Loader(build("filtered"), num_workers=1, multiprocessing_context=method)
    resumed.load_state_dict(through_json(loader.state_dict()))
    assert got + ids(resumed) == whole
    assert got + ids(go_on(loader)) == whole


@pytest.mark.parametrize("mixed", [lambda dataset: dataset, lambda dataset: me.mix([me.mix([dataset]), dataset])])
def test_a_function_that_cannot_be_sent_is_named(folder, mixed):
    dataset = mixed(me.read(folder).map(lambda row: row))
    loader = me.Loader(dataset, num_workers=1, multiprocessing_context="spawn")
    with pytest.raises(
        TypeError, match=r"<lambda> cannot be sent to workers started by 'spawn'.*top level of a module"
    ):
        list(loader)


def test_E6_ranks_are_even_by_default_and_padding_is_marked(build):
    whole = list(build("rows", 4).batch(7))
    for workers in (0, 2):
        loaders = [me.Loader(build("rows", 4).shard(2, rank), batch_size=7, num_workers=workers) for rank in range(2)]
        delivered, marked = [], 0
        for batches in zip(*loaders, strict=True):  # strict: ranks that run out at different steps raise
            states = [through_json(loader.state_dict()) for loader in loaders]
            assert states[0] == states[1]
            for loader, batch in zip(loaders, batches, strict=True):
                marked += loader.is_padding
                delivered += [] if loader.is_padding else [batch]
        assert marked == 2 * len(loaders[0]) - len(whole)
        assert sorted(ids(delivered)) == sorted(ids(whole))
        assert not any(loader.is_padding for loader in loaders)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"even": "yes"}, ValueError, "'yes'; it can be 'auto', 'pad', 'drop' or None"),
        ({"drop_last": True}, ValueError, "drop_last needs a batch_size"),
        ({"batch_size": 0}, ValueError, "batch_size is 0; it must be at least 1"),
    ],
)
def test_wrong_arguments_are_refused(build, options, error, message):
    with pytest.raises(error, match=message):
        me.Loader(build("rows"), **options)


def fail_at_row_twenty(row):
    if row["id"] == 20:
        raise ZeroDivisionError("bad row")
    return {}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_failing_function_names_worker_file_and_row_and_the_state_resumes(folder, workers):
    loader = me.Loader(me.read(folder).lanes(2).map(fail_at_row_twenty), num_workers=workers)
    got = []
    with pytest.raises(ZeroDivisionError) as caught:  # noqa: PT012
        for row in loader:
            got.append(row["id"])
    message = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert "row 0 of part-0002.parquet" in message
    if workers:
        assert "worker process 0" in message
    whole = ids(me.read(folder).lanes(2))
    assert got == whole[: whole.index(20)]
    state = through_json(loader.state_dict())
    del state["checksum"]
    state["fingerprint"]["pipeline"] = []
    resumed = me.read(folder)
    resumed.load_state_dict(state)
    assert got + ids(resumed) == whole


def test_empty_data_and_more_workers_than_rows(build):
    assert list(me.Loader(build("rows").take(0), num_workers=2)) == []
    assert sorted(ids(me.Loader(build("rows").take(3), num_workers=4))) == sorted(ids(build("rows").take(3)))


def test_repeat_over_uneven_ranks_is_refused_without_even(build):
    with pytest.raises(ValueError, match=r"needs even='pad' or even='drop': ranks may have different"):
        me.Loader(build("rows", 1).repeat().shard(2, 0), batch_size=7, even=None)
    loaders = [me.Loader(build("rows", 1).repeat(2).shard(2, rank), batch_size=7, even="pad") for rank in range(2)]
    for _ in zip(*loaders, strict=True):
        assert me.merge_states([loader.state_dict() for loader in loaders]) == loaders[0].state_dict()


def test_a_dataset_that_nobody_sharded_is_warned_of_under_a_launcher(build, monkeypatch, caplog):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    log_once.cache_clear()
    for sharded in (build("rows").shard(), build("rows").shard(1, 0), with_launched_shard(build("rows"))):
        me.Loader(sharded)
    assert not caplog.records
    for _ in range(2):
        me.Loader(build("rows"))
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "2 ranks were launched, and this Loader's dataset is not sharded"
    ]


def test_a_loader_can_be_closed_and_used_again(folder):
    before = set(multiprocessing.active_children())
    loader = me.Loader(me.read(folder), batch_size=8, num_workers=2, persistent_workers=True)
    loop = iter(loader)
    received = ids([next(loop), next(loop)])
    state = loader.save_state()
    loader.close()
    assert set(multiprocessing.active_children()) <= before
    assert loader.save_state() == state
    with pytest.raises(me.StaleIteratorError, match="closed"):
        next(loop)
    loader.restore_state(state)
    assert received + ids(loader) == ids(me.Loader(me.read(folder).lanes(2), batch_size=8))
    loader.close()
    loader.close()
    assert set(multiprocessing.active_children()) <= before


def test_persistent_workers_stay_when_a_loader_is_resharded(folder):
    before = set(multiprocessing.active_children())
    loader = me.Loader(me.read(folder).lanes(4), batch_size=8, num_workers=2, persistent_workers=True)
    first = ids([next(iter(loader))])
    workers = set(multiprocessing.active_children()) - before
    assert len(workers) == 2
    loader.reshard(2, 1, at=loader.state_dict())
    rest = ids(loader)
    assert set(multiprocessing.active_children()) - before == workers
    whole = [ids([batch]) for batch in me.Loader(me.read(folder).lanes(4), batch_size=8)]
    assert first == whole[0]
    assert rest[: len(whole[2])] == whole[2]  # the second of two shards, from the second batch on
    loader.close()
