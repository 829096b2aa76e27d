"""What a Loader answers about steps and rows, and what it cannot answer."""

import pytest

import midepoch as me
from counted import is_kept, write_files
from files import plain
from midepoch.delivery.trace import SCHEMA


@pytest.fixture
def files(tmp_path):
    write_files(tmp_path)
    return tmp_path


def ids(lines):
    """The ids of the rows of a trace, by what the files hold."""
    first = {"0.arrow": 0, "2.arrow": 17, "3.arrow": 48}
    return [first[line["file"]] + line["row"] for line in lines]


def test_rows_of_items_that_are_not_counted_are_unknown_until_a_survey(files):
    dataset = me.read(files).filter(is_kept)
    for ask in (lambda loader: loader.trace(0), lambda loader: loader.find("0.arrow", 0)):
        with pytest.raises(
            ValueError, match=r"only where items are counted: how many items filter yields .*survey\(\)"
        ):
            ask(me.Loader(dataset))
    loader = me.Loader(dataset.survey())
    assert ids(loader.trace(0).to_pylist()) == [plain(next(iter(loader))["id"])]


def test_a_state_without_a_history_is_traced_only_as_a_run_of_its_own(files):
    loader = me.Loader(me.read(files), batch_size=4)
    batches = iter(loader)
    next(batches)
    state = {key: value for key, value in loader.state_dict().items() if key not in ("history", "checksum")}
    loader.load_state_dict(state)
    with pytest.raises(ValueError, match="does not know which ranks read epoch 0"):
        loader.trace(0)
    assert loader.trace(0, ranks=1)["row"].to_pylist() == [0, 1, 2, 3]
    assert loader.trace(0, epoch=1)["row"].to_pylist() == [0, 1, 2, 3]


def test_files_are_named_as_users_name_them(files):
    loader = me.Loader(me.read(files), batch_size=4)
    assert loader.find("2.arrow", 3).num_rows == 1
    assert loader.find(str(files / "2.arrow"), 3).num_rows == 1
    filtered = me.Loader(me.read(files).filter(is_kept).survey(), batch_size=4)
    assert filtered.find("0.arrow", 3).schema == SCHEMA
    assert filtered.find("0.arrow", 3).num_rows == 0, "a filter drops it"
    with pytest.raises(ValueError, match=r"2\.arrow has 31 rows, counted from 0, so there is no row 31 in it"):
        loader.find("2.arrow", 31)
    mixed = me.Loader(me.mix([me.read(files), me.read(files / "0.arrow")], weights=[1, 1], seed=1))
    with pytest.raises(ValueError, match=r"0\.arrow has 17 rows"):
        mixed.find("0.arrow", 17)
    with pytest.raises(ValueError, match=r"7\.arrow: no file is called so\. The dataset has: 0\.arrow, "):
        loader.find("7.arrow", 0)
