import pyarrow as pa
import pytest

from midepoch.pipeline.cache import ItemFile, read_batches

NARROW = pa.record_batch({"x": pa.array([1, 2], pa.int8())})
WIDE = pa.record_batch({"x": pa.array([300], pa.int64())})


def rows_of(path):
    return [row["x"] for batch in read_batches(path) for row in batch.to_pylist()]


def written(path, *batches, schema=None):
    """A file with these batches, in the schema of each or in one for all, before it is published."""
    file = ItemFile(path, schema)
    for batch in batches:
        file.write(batch)
    return file


@pytest.mark.parametrize("with_links", [True, False])
def test_a_file_that_another_worker_has_finished_stays(tmp_path, monkeypatch, with_links):
    """Who reads it would else see it change."""
    if not with_links:
        monkeypatch.setattr("os.link", no_links)
    path = tmp_path / "part.arrow"
    with written(path, NARROW) as one, written(path, NARROW) as other:
        one.publish()
        first = path.stat()
        other.publish()
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (first.st_ino, first.st_mtime_ns)
    assert [one.name for one in tmp_path.iterdir()] == ["part.arrow"]


def no_links(*paths):
    raise PermissionError("no links here")


def test_a_file_is_replaced_by_a_wider_one_once(tmp_path):
    path = tmp_path / "part.arrow"
    with written(path, NARROW) as narrow:
        narrow.publish()
    with written(path, NARROW, schema=WIDE.schema) as one, written(path, NARROW, schema=WIDE.schema) as other:
        one.replace()
        wide = path.stat()
        other.replace()
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (wide.st_ino, wide.st_mtime_ns)
    assert {batch.schema.field("x").type for batch in read_batches(path)} == {pa.int64()}
    assert rows_of(path) == [1, 2]
    assert [one.name for one in tmp_path.iterdir()] == ["part.arrow"]
