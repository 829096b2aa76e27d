"""Digests of Loaders: predicted, kept through resumes and workers, checked, and unknown where they are."""

import pytest

import midepoch as me
from counted import is_kept, write_files
from midepoch.distributed import in_step
from midepoch.workers import pool
from worlds import through_json


@pytest.fixture
def files(tmp_path):
    write_files(tmp_path)
    return tmp_path


def double(row):
    return {"id": 2 * row["id"]}


def received(loader, steps=None):
    return [batch for _, batch in zip(range(1_000 if steps is None else steps), loader, strict=False)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["map", "cut mixture"])
def test_E10_an_epoch_that_is_interrupted_has_the_predicted_digest(files, kind, workers):
    rows = me.read(files).shuffle(seed=3)
    dataset = {
        "map": rows.map(double).with_format("numpy"),
        "cut mixture": me.mix([rows, rows], weights=[2, 1], seed=1, stop="all").pack(5, strategy="concat").survey(),
    }[kind].lanes(3)
    first = me.Loader(dataset, batch_size=4, digest=True, num_workers=workers)
    begun = iter(first)
    for _ in range(3):
        next(begun)
    partly = first.check_digest()
    state = through_json(first.state_dict())
    first.close()
    second = me.Loader(dataset, batch_size=2, digest=True)
    second.load_state_dict(state)
    assert second.state_dict() == state
    assert second.check_digest() == partly
    assert partly != dataset.digest()
    for _ in second:
        second.check_digest()
    assert second.check_digest() == second.digest() == dataset.digest()
    assert received(second) != []
    assert second.check_digest() == dataset.digest(epoch=1)


def test_readers_that_report_cursors_keep_a_digest_that_merges(files):
    dataset = me.read(files).filter(is_kept).lanes(3)
    alone = me.Loader(dataset, batch_size=2, digest=True)
    received(alone)
    loaders = [me.Loader(dataset.shard(2, rank), batch_size=2, digest=True, even=None) for rank in range(2)]
    for loader in loaders:
        received(loader, 3)
        state = through_json(loader.state_dict())
        loader.load_state_dict(state)
        assert loader.state_dict() == state
        received(loader, 2)
    again = me.Loader(dataset, batch_size=2, digest=True)
    again.load_state_dict(me.merge_states([loader.state_dict() for loader in loaders]))
    received(again)
    assert again.digest() == alone.digest()
    with pytest.raises(ValueError, match=r"The digest cannot be checked: .*call \.survey\(\) once"):
        again.check_digest()
    with pytest.raises(ValueError, match=r"The digest cannot be predicted: .*call \.survey\(\) once"):
        dataset.digest()


def test_a_worker_that_sends_an_item_twice_is_found(files, monkeypatch):
    # With this prefetch_factor each message has one item.
    loader = me.Loader(me.read(files), batch_size=4, num_workers=2, prefetch_factor=2, digest=True)
    take = pool.Inbox.take
    sent = []

    def planted(self, count):
        chunk = take(self, count)
        sent.append(chunk)
        return sent[0] if len(sent) == 3 else chunk

    monkeypatch.setattr(pool.Inbox, "take", planted)
    batches = received(loader)
    rows = sorted(number for batch in batches for number in batch["id"])
    assert rows != list(range(60))
    with pytest.raises(me.DigestMismatchError, match=r"rank 0 delivered of epoch 0 since it resumed is not what"):
        loader.check_digest()


def test_padding_counts_as_nothing_delivered(files):
    dataset = me.read(files).take(20).batch(4).lanes(1)
    loaders = [me.Loader(dataset.shard(2, rank), even="pad", digest=True) for rank in range(2)]
    assert [len(received(loader)) for loader in loaders] == [3, 3]
    for loader in loaders:
        loader.check_digest()
    assert sum(loader.digest() for loader in loaders) % (1 << 64) == dataset.digest()


def test_states_without_a_digest_are_as_they_were(files):
    plain, asked = (me.Loader(me.read(files), batch_size=4, digest=digest) for digest in (False, True))
    assert plain.state_dict()["digest"] is None
    assert asked.state_dict()["digest"] == "0" * 16
    for loader in (plain, asked):
        received(loader, 2)
    state, with_digest = plain.state_dict(), asked.state_dict()
    assert len(with_digest["digest"]) == 16
    assert {key for key in state if state[key] != with_digest[key]} == {"digest", "checksum"}
    with pytest.raises(ValueError, match="There is no digest: pass digest=True to the Loader"):
        plain.digest()


def test_rows_that_are_left_out_leave_the_digest(files):
    dataset = me.read(files).shuffle(3).lanes(2)
    loader = me.Loader(dataset, batch_size=4, digest=True)
    received(loader, 5)
    gone = [(file, row) for file in ("0.arrow", "2.arrow") for row in range(0, 17, 2)]
    for rows in (gone[:9], gone[9:]):
        edited = me.Loader(dataset := dataset.without(rows), batch_size=3, digest=True)
        edited.load_state_dict(loader.state_dict())
        edited.check_digest()
        received(edited, 2)
        edited.check_digest()
        loader = edited
    loader.load_state_dict(through_json(loader.state_dict()))
    received(loader)
    assert loader.check_digest() == dataset.digest() != me.read(files).digest()


@pytest.mark.parametrize(
    ("gone", "reason"), [(None, "a run that did not keep it"), ([("0.arrow", 16)], "rows were left out of filters")]
)
def test_a_digest_that_is_not_known_says_why_and_the_next_epoch_has_one(files, gone, reason):
    rows = me.read(files).filter(is_kept).survey()
    first = me.Loader(rows, batch_size=4, digest=gone is not None)
    received(first, 2)
    dataset = rows if gone is None else rows.without(gone)
    second = me.Loader(dataset, batch_size=4, digest=True)
    second.load_state_dict(first.state_dict())
    received(second, 1)
    assert second.state_dict()["digest"].startswith("unknown:")
    with pytest.raises(ValueError, match=f"The digest of epoch 0 is not known, because .*{reason}"):
        second.check_digest()
    second.load_state_dict(second.state_dict())
    received(second)
    received(second)
    assert second.epoch == 2
    assert second.check_digest() == dataset.digest()


def test_the_state_of_one_rank_does_not_know_the_digest_of_all(files, caplog):
    loaders = [me.Loader(me.read(files).shard(2, rank), batch_size=4, digest=True) for rank in range(2)]
    for loader in loaders:
        received(loader, 2)
    state = loaders[1].state_dict()
    assert "digest of rank 1 of 2" in caplog.text
    loaders[0].load_state_dict(state)
    assert loaders[0].state_dict() == state
    with pytest.raises(ValueError, match="holds the digest of one rank of several: save gather_state"):
        loaders[0].digest()


def test_in_step_and_an_endless_mixture(files):
    dataset = me.mix([me.read(files), me.read(files).take(3)], weights=[1, 1], seed=1, stop="never")
    loader = me.Loader(dataset, batch_size=4, digest=True)
    received(loader, 3)
    assert loader.digest()
    with pytest.raises(ValueError, match="an epoch that never ends"):
        loader.check_digest()
    with pytest.raises(ValueError, match="an epoch that never ends"):
        dataset.digest()
    loader = me.Loader(me.read(files), batch_size=8, digest=True)
    assert sum(len(batch["id"]) for batch in in_step(loader)) == 60
    assert loader.check_digest() == me.read(files).digest()
