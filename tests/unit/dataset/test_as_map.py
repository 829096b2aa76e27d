"""Datasets by position, a sampler of positions that resumes, and objects with positions as datasets."""

import pickle
from itertools import islice

import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

import midepoch as me
from worlds import ids, is_kept, jitter, plus_one, write_files


@pytest.fixture
def dataset(tmp_path):
    return me.read(write_files(tmp_path / "data", [20, 0, 7, 33], kinds=["stream", "parquet"]))


VIEWED = {
    "plain": lambda rows: rows,
    "shuffled": lambda rows: rows.shuffle(seed=3).map(plus_one),
    "random": lambda rows: rows.shuffle(seed=3, level="row").map(jitter, with_rng=True),
    "selected": lambda rows: rows.select([9, 4, 30]).with_format("numpy"),
    "batched": lambda rows: rows.shuffle(seed=1).batch(7),
    "filtered": lambda rows: rows.filter(is_kept).survey().shuffle(seed=1),
    "packed": lambda rows: rows.filter(is_kept).pack(16, column="tokens", window=8).survey(),
    "mixed": lambda rows: me.mix([rows, rows.shuffle(seed=2)], stop="all"),
}


@pytest.mark.parametrize("name", VIEWED)
def test_items_by_position(dataset, name):
    made = VIEWED[name](dataset)
    view = made.as_map()
    expected = list(map(repr, made))
    assert len(view) == len(expected)
    assert [repr(view[number]) for number in range(len(view))] == expected
    view = pickle.loads(pickle.dumps(view))
    wanted = [len(expected) - 1, 0, 0, -1, 1]
    assert list(map(repr, view.__getitems__(wanted))) == [expected[number] for number in wanted]
    assert view.__getitems__([]) == []
    for wrong in (len(expected), -len(expected) - 1):
        with pytest.raises(IndexError, match=rf"There is no item {wrong}; the dataset has {len(expected)} items"):
            view[wrong]


def test_a_view_is_of_the_present_epoch(dataset):
    shuffled = dataset.shuffle(seed=3)
    first = ids(shuffled.as_map())
    assert first == ids(shuffled)
    assert ids(shuffled.as_map()) == ids(shuffled) != first


def test_what_has_no_positions(dataset):
    with pytest.raises(ValueError, match=r"as_map needs a dataset whose number of items is known. .*survey"):
        dataset.filter(is_kept).as_map()
    with pytest.raises(ValueError, match="as_map after shard is not possible"):
        dataset.shard(2, 0).as_map()


def test_a_sampler_resumes_on_other_ranks(dataset):
    view = dataset.as_map()
    expected = list(view.sampler(seed=4, lanes=6))
    samplers = [view.sampler(seed=4, num_shards=2, index=rank, lanes=6) for rank in range(2)]
    runs = [list(islice(iter(sampler), 9)) for sampler in samplers]
    seen = [position for pair in zip(*runs, strict=True) for position in pair]
    others = [view.sampler(seed=4, num_shards=3, index=rank, lanes=6) for rank in range(3)]
    for sampler in others:
        sampler.load_state_dict(samplers[0].state_dict())
    assert sum(map(len, others)) == 60
    rest = [position for group in zip(*others, strict=True) for position in group]
    assert seen + rest == expected
    others[0].set_epoch(1)
    assert set(others[0]) != set(expected[::3])


@pytest.mark.filterwarnings("ignore:'set_vital':UserWarning")
def test_a_stateful_dataloader_with_workers(dataset):
    view = dataset.select_columns("id").as_map()

    def build():
        return StatefulDataLoader(view, batch_size=6, sampler=view.sampler(seed=4), num_workers=2)

    expected = ids(build())
    loader = build()
    batches = iter(loader)
    seen = ids(next(batches) for _ in range(3))
    state = loader.state_dict()
    del batches
    resumed = build()
    resumed.load_state_dict(state)
    assert seen + ids(resumed) == expected


class Squares(torch.utils.data.Dataset):
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, number):
        if number >= self.size:
            raise IndexError(number)
        return {"id": number, "square": torch.tensor(number**2)}


def test_an_indexable_object_is_a_dataset():
    dataset = me.from_indexable(Squares(50))
    assert ids(dataset) == list(range(50))
    assert len(dataset) == 50
    assert next(iter(dataset)).keys() == {"id", "square"}
    shuffled = dataset.shuffle(seed=3, level="row").map(plus_one).batch(4)
    assert sorted(ids(shuffled)) == list(range(50))
    ordered = dataset.shuffle(seed=3).filter(is_kept).map(lambda row: row["id"])
    me.testing.assert_resumes(ordered, every=3)
    me.testing.assert_elastic(ordered.lanes(4), [(2, 1), (1, 2), (3, 1)])
    assert sorted(ids(me.Loader(shuffled, num_workers=2))) == list(range(50))
    train, test = dataset.train_test_split(10)
    assert sorted(ids(train) + ids(test)) == list(range(50))


def test_other_indexable_objects():
    assert sorted(next(iter(me.from_indexable(["a", "b", "c"]).shuffle(seed=1).batch(3)))) == ["a", "b", "c"]
    assert sorted(me.from_indexable([(1, 2), (3, 4)])) == [(1, 2), (3, 4)]
    assert list(me.from_indexable(range(5, 9)).batch(2)) == [[5, 6], [7, 8]]
    again = me.from_indexable(me.from_indexable(range(9)).as_map())
    assert list(again) == list(range(9))


def test_a_checkpoint_knows_the_object():
    state = me.from_indexable(Squares(50), name="squares").state_dict()
    me.from_indexable(Squares(50), name="squares").load_state_dict(state)
    for other in (me.from_indexable(Squares(51), name="squares"), me.from_indexable(Squares(50), name="cubes")):
        with pytest.raises(me.CheckpointMismatchError):
            other.load_state_dict(state)


def test_errors_of_an_object_name_its_row():
    with pytest.raises(ZeroDivisionError) as raised:
        list(me.from_indexable(Failing()))
    assert raised.value.__notes__ == ["midepoch: in from_indexable(Indexed), at row 2 of Failing"]
    with pytest.raises(TypeError, match=r"an object with len\(\) and \[i\], got a int"):
        me.from_indexable(5)
    with pytest.raises(TypeError, match="that row numbers index, got a dict"):
        me.from_indexable({"a": 1})


class Failing(Squares):
    def __init__(self):
        super().__init__(5)

    def __getitem__(self, number):
        return {"id": 1 // (number - 2)}
