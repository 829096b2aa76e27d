import pyarrow as pa
import pytest

from midepoch.pipeline.unit_file import UnitFile, as_schema, read_batches

NARROW = pa.record_batch({"x": pa.array([1, 2], pa.int8())})
WIDE = pa.record_batch({"x": pa.array([300], pa.int64())})


def rows_of(path):
    return [row["x"] for batch in read_batches(path) for row in batch.to_pylist()]


def test_a_file_has_its_name_only_when_it_is_finished(tmp_path):
    path = tmp_path / "part.arrow"
    file = UnitFile(path)
    file.write(NARROW, NARROW.schema)
    assert not path.exists()
    file.finish()
    file.discard()
    assert rows_of(path) == [1, 2]
    assert [one.name for one in tmp_path.iterdir()] == ["part.arrow"]


@pytest.mark.parametrize("with_links", [True, False])
def test_a_file_that_another_worker_has_finished_stays(tmp_path, monkeypatch, with_links):
    """Who reads it would else see it change."""
    if not with_links:
        monkeypatch.setattr("os.link", no_links)
    path = tmp_path / "part.arrow"
    one, other = UnitFile(path), UnitFile(path)
    for file in (one, other):
        file.write(NARROW, NARROW.schema)
    one.finish()
    first = path.stat()
    other.finish()
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (first.st_ino, first.st_mtime_ns)
    assert [one.name for one in tmp_path.iterdir()] == ["part.arrow"]


def no_links(*paths):
    raise PermissionError("no links here")


def test_a_file_is_replaced_by_a_wider_one_once(tmp_path):
    path = tmp_path / "part.arrow"
    narrow = UnitFile(path)
    narrow.write(NARROW, NARROW.schema)
    narrow.finish()
    one, other = UnitFile(path, WIDE.schema), UnitFile(path, WIDE.schema)
    for file in (one, other):
        file.write(NARROW, WIDE.schema)
    one.replace()
    wide = path.stat()
    other.replace()
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (wide.st_ino, wide.st_mtime_ns)
    assert {batch.schema.field("x").type for batch in read_batches(path)} == {pa.int64()}
    assert rows_of(path) == [1, 2]
    assert [one.name for one in tmp_path.iterdir()] == ["part.arrow"]


def test_a_file_that_is_not_finished_leaves_nothing(tmp_path):
    file = UnitFile(tmp_path / "part.arrow")
    file.write(NARROW, NARROW.schema)
    file.write(WIDE, WIDE.schema)
    file.discard()
    assert list(tmp_path.iterdir()) == []


def test_batches_before_a_wider_one_are_written_again(tmp_path):
    path = tmp_path / "part.arrow"
    file = UnitFile(path)
    for batch, schema in ((NARROW, NARROW.schema), (WIDE, WIDE.schema), (NARROW, WIDE.schema)):
        file.write(batch, schema)
    file.finish()
    assert rows_of(path) == [1, 2, 300, 1, 2]
    assert {batch.schema.field("x").type for batch in read_batches(path)} == {pa.int64()}
    assert [one.name for one in tmp_path.iterdir()] == ["part.arrow"]


def test_a_value_that_would_change_raises():
    with pytest.raises(pa.ArrowInvalid, match="300"):
        as_schema(WIDE, NARROW.schema)
