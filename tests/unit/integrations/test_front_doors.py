"""All ways to open a dataset agree: the default shuffle, the shard of the launcher, the names of options, executors."""

import inspect
from dataclasses import dataclass

import pytest

import midepoch as me
from midepoch.dataset import file_rows, plan_of
from midepoch.integrations.structured import ShuffleSplits
from midepoch.order.orders import Shuffle
from midepoch.order.windows import WINDOW
from worlds import ids, table, write_files

ROWS = 60


def tokenise(sample):
    return {"id": sample["id"], "input_ids": [1]}


@dataclass(frozen=True)
class Numbers:
    def __len__(self):
        return ROWS

    def __getitem__(self, number):
        return {"id": number}


def from_hf(folder):
    datasets = pytest.importorskip("datasets")
    return me.from_hf(datasets.Dataset(table(0, ROWS)))


def tokens(folder):
    file = folder.parent / "train.bin"
    file.write_bytes(bytes(range(ROWS)))
    return me.tokens(file, dtype="uint8", length=1).map(lambda row: {"id": row["input_ids"][0]})


def chats(folder, **options):
    rows = me.read(folder).map(lambda row: {"text": [{"role": "user", "content": row["text"]}]})
    return me.MultiModalIterableDataset(rows, processor=tokenise, messages_column="text", **options)


# Those that return a Dataset: it is shuffled and sharded by its methods.
OPENED = {
    "read": lambda folder: me.read(folder),
    "SimpleArrowIterableDataset": lambda folder: me.SimpleArrowIterableDataset(folder),
    "from_hf": from_hf,
    "from_indexable": lambda folder: me.from_indexable(Numbers()),
    "tokens": tokens,
}
# Those that have options for the shuffle and the shard.
WITH_OPTIONS = {
    "StructuredDataset": lambda folder, **options: me.StructuredDataset(folder, **options),
    "create_dataloader": lambda folder, **options: me.StructuredDataset.create_dataloader(
        folder, batch_size=1, columns=["id"], output_format="dict", **options
    )[1],
    "MultiModalIterableDataset": chats,
}


@pytest.fixture
def folder(tmp_path):
    return write_files(tmp_path / "data", [20, 7, 33], kinds=["stream"], block=5)


@pytest.fixture
def launched(monkeypatch):
    def launch(rank, ranks):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(ranks))

    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
    return launch


@pytest.mark.parametrize("door", OPENED)
def test_a_shuffle_without_a_level_is_of_blocks_and_rows_in_windows(folder, door):
    shuffled = OPENED[door](folder).shuffle(seed=3)
    (step,) = [step for step in file_rows(shuffled, "test").steps if isinstance(step, Shuffle)]
    assert (step.level, step.window) == ("block", WINDOW)
    assert ids(shuffled) != list(range(ROWS))
    sized = OPENED[door](folder).shuffle(seed=3, buffer_size=7)
    (step,) = [step for step in file_rows(sized, "test").steps if isinstance(step, Shuffle)]
    assert step.window == 7, "no name of an option is accepted and ignored"


@pytest.mark.parametrize("door", WITH_OPTIONS)
def test_shuffle_true_mixes_rows_in_windows_of_the_same_size_by_the_same_seed(folder, door):
    rows = file_rows(WITH_OPTIONS[door](folder, shuffle=True), "test")
    (step,) = [step for step in rows.steps if isinstance(step, Shuffle | ShuffleSplits)]
    assert (step.window, step.seed) == (WINDOW, 42)
    assert isinstance(step, ShuffleSplits) or step.level == "block"
    seeded = file_rows(WITH_OPTIONS[door](folder, shuffle=True, shuffle_seed=7), "test")
    assert seeded.steps[-1].seed == 7


@pytest.mark.parametrize("door", [*OPENED, *WITH_OPTIONS])
def test_ranks_of_a_launcher_read_disjoint_shards_that_are_complete(folder, launched, door):
    got = []
    for rank in range(3):
        launched(rank, 3)
        own = OPENED[door](folder).shard() if door in OPENED else WITH_OPTIONS[door](folder, shuffle=False)
        assert (plan_of(own).rank, plan_of(own).ranks) == (rank, 3)
        got.append(ids(own))
    assert sorted(number for one in got for number in one) == list(range(ROWS))
    assert max(map(len, got)) - min(map(len, got)) <= 1


@pytest.mark.parametrize("door", WITH_OPTIONS)
def test_a_rank_that_is_passed_counts_before_that_of_the_launcher(folder, launched, door):
    launched(1, 3)
    passed = WITH_OPTIONS[door](folder, shuffle=False, rank=0, num_ranks=2)
    assert (plan_of(passed).rank, plan_of(passed).ranks) == (0, 2)
    launched_shard = WITH_OPTIONS[door](folder, shuffle=False)
    replaced = launched_shard.shard(2, 1)
    assert (plan_of(replaced).rank, plan_of(replaced).ranks) == (1, 2)
    assert (plan_of(launched_shard.shard()).rank, plan_of(launched_shard.shard()).ranks) == (1, 3), (
        "not a shard of a shard"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 1}, "rank is 1 and num_ranks is None; pass both, or neither"),
        ({"num_ranks": 2}, "rank is None and num_ranks is 2; pass both, or neither"),
        ({"rank": 2, "num_ranks": 2}, "2"),
    ],
)
@pytest.mark.parametrize("door", WITH_OPTIONS)
def test_half_a_rank_and_a_rank_that_is_too_high_raise(folder, launched, door, options, message):
    with pytest.raises(ValueError, match=message):
        WITH_OPTIONS[door](folder, **options)


@pytest.mark.parametrize("door", [*OPENED, *WITH_OPTIONS])
def test_an_environment_that_makes_no_sense_raises(folder, launched, door):
    launched(3, 3)
    with pytest.raises(ValueError, match="RANK is '3' and WORLD_SIZE is '3' in the environment"):
        _ = OPENED[door](folder).shard() if door in OPENED else WITH_OPTIONS[door](folder)


# Why an option has another default in one of the doors.
DIFFER = {
    "shuffle": "the classes that each of them replaces differ",
    "output_format": "a dataset yields rows, a loader tensors",
    "batch_size": "Loader(batch_size=None) takes items as they are; map(batched=True) is no loader",
    "format": "tokens has no format",
}


def test_options_of_the_same_name_have_the_same_default():
    doors = {
        "read": me.read,
        "StructuredDataset": me.StructuredDataset,
        "StructuredDataset.create_dataloader": me.StructuredDataset.create_dataloader,
        "IcebergDataset": me.IcebergDataset,
        "IcebergDataset.create_dataloader": me.IcebergDataset.create_dataloader,
        "fast_load_iterable_dataset": me.fast_load_iterable_dataset,
        "SimpleArrowIterableDataset": me.SimpleArrowIterableDataset,
        "MultiModalIterableDataset": me.MultiModalIterableDataset,
        "Loader": me.Loader,
    }
    defaults: dict[str, dict[object, list[str]]] = {}
    for door, function in doors.items():
        for name, parameter in inspect.signature(function).parameters.items():
            if parameter.default is not inspect.Parameter.empty:
                defaults.setdefault(name, {}).setdefault(parameter.default, []).append(door)
    unlike = {name: found for name, found in defaults.items() if len(found) > 1 and name not in DIFFER}
    assert not unlike, unlike
    names = {name for function in doors.values() for name in inspect.signature(function).parameters}
    others = {"seed", "shard_id", "world_size", "ranks", "storage_opts", "index_folder", "cache_folder"}
    assert not names & others, "another name of an option that other doors have"


@pytest.mark.parametrize(
    "door", [me.StructuredDataset, me.StructuredDataset.create_dataloader, me.SimpleArrowIterableDataset]
)
def test_an_executor_reaches_what_scans_the_files(folder, door):
    with pytest.raises(TypeError, match="executor is a int"):
        door(folder, executor=4)
