"""One listing for all ranks, and none of them ever waits for another longer than it has patience."""

import pytest

import midepoch as me
from midepoch.errors import NoDataError
from midepoch.formats import file_suffixes
from midepoch.storage import listing as listings
from midepoch.storage import shared_listing
from midepoch.storage.shared_listing import find_once
from objects import put_rows


class Group(dict):
    """The store of a process group: as torch's, but for ``get`` of a key that is not there, which raises."""

    is_dead = False

    def add(self, key, amount):
        self[key] = self.get(key, 0) + amount
        return self[key]

    def set(self, key, value):
        if self.is_dead:
            raise RuntimeError("Connection reset by peer")
        self[key] = value

    def check(self, keys):
        if self.is_dead:
            raise RuntimeError("Connection reset by peer")
        return all(key in self for key in keys)


@pytest.fixture
def group(monkeypatch):
    group = Group()
    monkeypatch.setattr(shared_listing, "process_group_store", lambda: group)
    monkeypatch.setattr(shared_listing, "PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr(shared_listing, "PART_BYTES", 20)
    return group


@pytest.fixture
def listed(monkeypatch):
    """The folders that were listed."""
    folders = []
    plain = listings.Store.list_objects
    monkeypatch.setattr(
        listings.Store,
        "list_objects",
        lambda store, folder, **others: folders.append(folder) or plain(store, folder, **others),
    )
    return folders


@pytest.fixture
def found_by(monkeypatch):
    def found_by(rank, url, ranks=4, **options):
        monkeypatch.setattr(shared_listing, "launched_rank", lambda: (rank, ranks))
        return find_once(url, options, suffixes=file_suffixes())

    return found_by


def test_one_listing_serves_all_ranks_and_each_call_has_its_own(group, listed, found_by, caplog):
    url = put_rows(files=3)
    first = [found_by(rank, url) for rank in range(4)]
    assert len(listed) == 1
    assert all(
        (one.spec, one.root, one.names, one.stamps) == (first[0].spec, first[0].root, first[0].names, first[0].stamps)
        for one in first
    )
    assert {one.store.identity for one in first} == {first[0].store.identity}
    put_rows(files=5)
    assert [len(found_by(rank, url).names) for rank in range(4)] == [5] * 4
    assert len(listed) == 2
    assert not caplog.records
    assert found_by(2, first[0]) is first[0]


@pytest.mark.parametrize("open_files", [me.read, me.StructuredDataset])
def test_ways_to_open_files_list_once(group, listed, monkeypatch, caplog, open_files):
    url = put_rows()
    for rank in range(4):
        monkeypatch.setattr(shared_listing, "launched_rank", lambda rank=rank: (rank, 4))
        assert len(open_files(url, shared_listing=True)) > 0
    assert len(listed) == 1
    assert not caplog.records


def test_a_rank_that_gets_no_listing_lists_itself(group, listed, found_by, caplog):
    url = put_rows()
    assert len(found_by(1, url).names) == 3
    assert "Rank 0 has shared no listing for 0.1 s" in caplog.text
    assert len(found_by(0, url).names) == len(found_by(2, url).names) == 3
    assert len(listed) == 2, "one for itself, and one for all others"


def test_if_rank_0_cannot_list_the_others_try_at_once(group, found_by, caplog, monkeypatch):
    with pytest.raises(NoDataError):
        found_by(0, "memory://data")
    monkeypatch.setattr(shared_listing, "PATIENCE_SECONDS", 1e6)
    put_rows()
    assert len(found_by(1, "memory://data").names) == 3
    assert "Rank 0 could not list the files" in caplog.text


@pytest.mark.parametrize("rank", [0, 1])
def test_a_group_whose_store_has_died_is_not_waited_for(group, found_by, caplog, rank):
    group.is_dead = True
    assert len(found_by(rank, put_rows()).names) == 3
    assert "Connection reset by peer" in caplog.text


def test_without_a_group_each_rank_lists(group, found_by, caplog, monkeypatch, tmp_path):
    assert len(found_by(0, put_rows(), ranks=1).names) == 3
    monkeypatch.setattr(shared_listing, "process_group_store", lambda: None)
    assert len(found_by(1, "memory://data").names) == 3
    assert caplog.text.count("shared_listing has no effect") == 2
    caplog.clear()
    (tmp_path / "a.csv").write_text("x\n1\n")
    assert found_by(1, tmp_path).store is None
    assert not caplog.records, "files on this machine are not shared"
