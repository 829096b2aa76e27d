"""What users of torch and `datasets` type works here, or the error shows what to type instead."""

import pickle

import numpy as np
import pytest
import torch

import midepoch as me
from midepoch.testing import same
from worlds import ids, write_files


@pytest.fixture
def dataset(tmp_path):
    return me.read(write_files(tmp_path / "data", [20, 0, 7, 33], kinds=["stream"]))


def add_one(row):
    return {"id": row["id"] + 1}


def is_even(row):
    return row["id"] % 2 == 0


def test_keyword_names_of_datasets(dataset):
    plain = dataset.map(add_one).filter(is_even).batch(7, True).repeat(2)
    named = dataset.map(function=add_one).filter(function=is_even)
    named = named.batch(batch_size=7, drop_last_batch=True).repeat(num_times=2)
    assert list(named) == list(plain)
    again = dataset.map(add_one).filter(is_even).batch(7, True).repeat(2)
    again.load_state_dict(state_dict=plain.state_dict())
    assert list(again) == list(plain), "the next epoch"


@pytest.mark.parametrize(("short", "form"), [("np", "numpy"), ("pt", "torch"), ("pa", "arrow"), (None, "python")])
def test_short_names_of_formats(dataset, short, form):
    one, other = next(iter(dataset.with_format(type=short))), next(iter(dataset.with_format(form)))
    assert type(one) is type(other)
    assert type(one["id"]) is type(other["id"])


@pytest.mark.parametrize(
    ("form", "instead"),
    [
        ("pandas", r'with_format\("arrow"\), and batch\.to_pandas\(\)'),
        ("polars", r'with_format\("arrow"\), and polars\.from_arrow\(batch\)'),
        ("jax", r'with_format\("numpy"\), and jax\.numpy\.asarray\(\.\.\.\)'),
        ("tensorflow", "'arrow'\\.$"),
    ],
)
def test_other_formats_are_one_call_away(dataset, form, instead):
    with pytest.raises(ValueError, match=rf"The format is '{form}'; it can be 'python', .*{instead}"):
        dataset.with_format(form)


def test_a_buffer_size_is_the_window(dataset):
    expected = ids(dataset.shuffle(seed=3, window=5, window_blocks=1))
    assert ids(dataset.shuffle(seed=3, buffer_size=5, window_blocks=1)) == expected
    with pytest.raises(ValueError, match="buffer_size is another name of window"):
        dataset.shuffle(buffer_size=5, window=6)
    assert ids(dataset.shuffle(seed=3, buffer_size=0)) == ids(dataset.shuffle(seed=3, level="file"))
    with pytest.raises(ValueError, match="buffer_size is -1"):
        dataset.shuffle(buffer_size=-1)
    with pytest.raises(ValueError, match="level='row' has no buffer"):
        dataset.shuffle(level="row", buffer_size=0)


def test_a_generator_is_a_seed(dataset):
    orders = [ids(dataset.shuffle(generator=np.random.default_rng(seed), level="row")) for seed in (5, 5, 6)]
    assert orders[0] == orders[1] != orders[2]
    torches = [ids(dataset.shuffle(generator=torch.Generator().manual_seed(seed), level="row")) for seed in (5, 5, 6)]
    assert torches[0] == torches[1] != torches[2]
    assert torches[0] == ids(dataset.shuffle(seed=5, level="row"))
    generator = np.random.default_rng(5)
    dataset.shuffle(generator=generator)
    assert generator.random() == np.random.default_rng(5).random(), "it is not advanced"
    with pytest.raises(ValueError, match="a seed or a generator, not both"):
        dataset.shuffle(3, generator=generator)
    with pytest.raises(TypeError, match=r"generator is a int; it must be a numpy\.random\.Generator"):
        dataset.shuffle(generator=5)


def test_a_loader_takes_its_batch_size_by_position_and_does_not_shuffle(dataset):
    batches = list(dataset.with_format("torch").batch(8))
    assert same(list(me.Loader(dataset, 8)), batches)
    assert same(list(me.Loader(dataset, 8, False)), batches)
    with pytest.raises(ValueError, match=r"Shuffle the dataset instead: Loader\(dataset\.shuffle\(seed=42\)"):
        me.Loader(dataset, batch_size=8, shuffle=True)


@pytest.mark.parametrize(
    ("argument", "advice"),
    [
        ({"sampler": [3, 1, 2]}, r"dataset\.shuffle\(seed=42\).*dataset\.shard\(\).*dataset\.select.*as_map\(\)"),
        ({"batch_sampler": [[3, 1], [2]]}, r"Use batch_size=n.*as_map\(\)"),
        ({"generator": torch.Generator()}, r"dataset\.shuffle\(seed=42\)"),
    ],
)
def test_a_loader_says_what_takes_the_place_of_samplers(dataset, argument, advice):
    (name,) = argument
    with pytest.raises(TypeError, match=f"A Loader takes no {name}, because its dataset has the order.*{advice}"):
        me.Loader(dataset, **argument)
    assert same(list(me.Loader(dataset, 8, **{name: None})), list(dataset.with_format("torch").batch(8)))


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 60

    def __getitem__(self, number):
        return {"id": number, "square": number**2}


class Endless(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(range(3))


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        (Squares(), r"got Squares\. .*midepoch\.from_indexable\(dataset\)"),
        (torch.utils.data.Subset(Squares(), [1, 2]), r"got Subset\. .*midepoch\.from_indexable\(dataset\)"),
        ([1, 2], r"midepoch\.from_indexable\(dataset\)"),
        (Endless(), r"got Endless\. A stream has no positions.*midepoch\.read\(files\)"),
        (torch.utils.data.DataLoader(Squares()), r"got DataLoader\. Pass the dataset that it reads"),
        ("data/*.parquet", r"Open the files first: midepoch\.read\(path\)"),
        ({"a": 1}, r"got dict\. Make one with midepoch\.read"),
    ],
    ids=lambda given: type(given).__name__,
)
def test_a_loader_of_something_else_says_how_it_becomes_a_dataset(given, advice):
    with pytest.raises(TypeError, match=f"Loader needs a midepoch dataset, {advice}" if "got" in advice else advice):
        me.Loader(given, batch_size=2)


@pytest.mark.parametrize(
    "chosen", [range(5, 40), range(40, 5, -3), [7, 3, 59, 0, 3], np.array([12, 2]), [], range(4, 4)]
)
def test_select_keeps_positions_in_their_order(dataset, chosen):
    rows = ids(dataset)
    selected = dataset.select(chosen)
    assert ids(selected) == [rows[number] for number in chosen]
    assert len(selected) == len(chosen)
    shuffled = ids(dataset.shuffle(seed=4, level="row"))
    assert ids(dataset.shuffle(seed=4, level="row").select(chosen)) == [shuffled[number] for number in chosen]


def test_select_resumes_and_counts_kept_rows(dataset):
    me.testing.assert_resumes(dataset.select([7, 3, 59, 0, 12]).batch(2))
    kept = dataset.filter(is_even).survey()
    assert ids(kept.select([2, 0])) == [ids(kept)[2], ids(kept)[0]]
    with pytest.raises(IndexError, match="select: there is no row 30; the dataset has 30 rows"):
        kept.select([0, 30])


def test_wrong_selections(dataset):
    for wrong in ([3, 60], range(59, 61), [-1]):
        with pytest.raises(IndexError, match=r"select: there is no row (60|-1); the dataset has 60 rows"):
            dataset.select(wrong)
    with pytest.raises(TypeError, match="A position in select must be an integer, got 'a'"):
        dataset.select(["a"])
    with pytest.raises(ValueError, match=r"select after shard is not possible"):
        dataset.shard(2, 0).select([1])
    with pytest.raises(ValueError, match=r"select after filter is not possible"):
        dataset.filter(is_even).select([1])


def test_iter_gives_batches(dataset):
    assert list(dataset.iter(batch_size=7)) == list(dataset.batch(7))
    assert len(list(dataset.iter(7, drop_last_batch=True))) == 8


def with_number(row, number):
    return {"number": number}


def with_numbers(rows, numbers):
    return {"number": numbers}


def numbered(item, number, rng):
    return {"number": number, "noise": int(rng.integers(1000))}


def is_even_number(row, number):
    return number % 2 == 0


def are_even_numbers(rows, numbers):
    return [number % 2 == 0 for number in numbers]


INDEXED = {
    "map": lambda rows: rows.map(with_number, with_indices=True),
    "map with rng": lambda rows: rows.map(numbered, with_indices=True, with_rng=True),
    "batched": lambda rows: rows.map(with_numbers, batched=True, batch_size=4, with_indices=True),
    "one to one": lambda rows: rows.map(
        with_numbers, batched=True, batch_size=4, one_to_one=True, with_indices=True
    ).map(with_number, with_indices=True),
    "after filter": lambda rows: rows.filter(is_even).map(with_number, with_indices=True),
    "columns": lambda rows: rows.map(lambda one, number: {"number": number}, input_columns="id", with_indices=True),
}


@pytest.mark.parametrize("name", INDEXED)
def test_an_index_is_the_number_of_the_row(dataset, name):
    for rows in (dataset, dataset.shuffle(seed=4), dataset.shuffle(seed=4, level="row").select([9, 30, 2, 51])):
        made = list(INDEXED[name](rows))
        assert made
        assert all(row["number"] == row["id"] for row in made)
    me.testing.assert_resumes(INDEXED[name](dataset.shuffle(seed=4)))
    me.testing.assert_elastic(INDEXED[name](dataset.shuffle(seed=4)).lanes(4), [(2, 1), (1, 3), (3, 1)])


@pytest.mark.parametrize(("function", "batched"), [(is_even_number, False), (are_even_numbers, True)])
def test_filters_get_indices(dataset, function, batched):
    kept = dataset.shuffle(seed=4).filter(function, batched=batched, with_indices=True)
    expected = [number for number in ids(dataset.shuffle(seed=4)) if number % 2 == 0]
    assert ids(kept) == ids(kept.survey()) == expected
    me.testing.assert_resumes(kept, every=7)


def test_indices_need_rows(dataset):
    with pytest.raises(ValueError, match=r"map\(with_indices=True\) after batch is not possible"):
        dataset.batch(2).map(with_number, with_indices=True)
    with pytest.raises(ValueError, match=r"filter\(with_indices=True\) after map is not possible"):
        dataset.map(with_number, batched=True).filter(is_even_number, with_indices=True)
    with pytest.raises(ValueError, match=r"map\(with_indices=True\) is not possible on a mixture"):
        me.mix([dataset, dataset]).map(with_number, with_indices=True)
    state = dataset.map(with_number, with_indices=True).state_dict()
    with pytest.raises(me.CheckpointMismatchError, match="with_indices"):
        dataset.map(with_number).load_state_dict(state)


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        (("10%", "20%"), range(6, 12)),
        ((None, "50%"), range(30)),
        (("-10%",), range(54, 60)),
        ((5, -50), range(5, 10)),
        ((20, 10), []),
        ((50, 90), range(50, 60)),
        (("33.3%", "50%"), range(20, 30)),
        ((0.1, 0.2), range(6, 12)),
        ((None, 0.29), range(17)),
        ((-0.1, None), range(54, 60)),
        ((0.0, 1.0), range(60)),
    ],
)
def test_slices(dataset, bounds, expected):
    assert ids(dataset.slice(*bounds)) == list(expected)


def test_a_checkpoint_of_other_rows_does_not_load_into_a_slice(dataset):
    state = iter(dataset.take(20)).state_dict()
    for cut in (dataset.slice(10, 20), dataset.select(range(10, 20))):
        with pytest.raises(me.CheckpointMismatchError, match="split"):
            cut.load_state_dict(state)


def test_wrong_slices(dataset):
    for wrong in ("10", "101%", "x%"):
        with pytest.raises(ValueError, match=f"start is '{wrong}'; pass a number of rows, or percents"):
            dataset.slice(wrong)
    with pytest.raises(ValueError, match=r"start is 1\.5; as a float it is a share of the rows"):
        dataset.slice(1.5)
    with pytest.raises(ValueError, match="start is nan; as a float"):
        dataset.slice(float("nan"))
    with pytest.raises(TypeError, match="start must be an integer"):
        dataset.slice([1])
    with pytest.raises(ValueError, match="slice after shard is not possible"):
        dataset.shard(2, 0).slice(3)


DERIVED = {
    "map": lambda ds: ds.map(add_one),
    "filter": lambda ds: ds.filter(is_even),
    "shard": lambda ds: ds.shard(2, 1),
    "take": lambda ds: ds.take(9),
    "shuffle": lambda ds: ds.shuffle(seed=4, level="row"),
    "select_columns": lambda ds: ds.select_columns("id"),
    "with_format": lambda ds: ds.with_format("numpy").with_format("python"),
    "repeat": lambda ds: ds.repeat(2),
    "several": lambda ds: ds.map(add_one).shard(2, 0).filter(is_even).lanes(4),
}


@pytest.mark.parametrize("derive", DERIVED.values(), ids=DERIVED)
def test_an_epoch_that_was_set_carries_over_to_datasets_that_are_derived_afterwards(dataset, derive):
    dataset = dataset.shuffle(seed=3, level="row")
    for epoch in (2, 0, 5):
        before = derive(dataset)
        epoch_before = before.epoch
        dataset.set_epoch(epoch)
        derived, expected = derive(dataset), derive(dataset)
        expected.set_epoch(epoch)
        assert derived.epoch == epoch
        assert ids(derived) == ids(expected), "the rows of that epoch"
        assert derived.epoch == expected.epoch, "and then the next one"
        assert before.epoch == epoch_before, "those from before stay where they are"
        assert ids(me.Loader(derive(pickle.loads(pickle.dumps(dataset))))) == ids(derive(dataset))


def test_a_pass_that_ends_does_not_move_datasets_that_are_derived_afterwards(dataset):
    dataset = dataset.shuffle(seed=3, level="row")
    expected = ids(dataset.map(add_one))
    list(dataset)
    assert dataset.epoch == 1
    assert ids(dataset.map(add_one)) == expected, "nobody set an epoch: they start at epoch 0"
    dataset.set_epoch(4)
    list(dataset)
    assert (dataset.epoch, dataset.map(add_one).epoch) == (5, 4)
