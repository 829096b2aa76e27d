"""A file that kills the worker that reads it is named, with the block, and the main process goes on."""

import os
import signal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import midepoch as me
from midepoch.formats import arrow, parquet
from midepoch.formats.text import records

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # torch reports the kill once more
]
READERS = {"parquet": parquet.ParquetBlocks, "arrow": arrow.ArrowBlocks, "jsonl": records.TextBlocks}
BLOCKS = {"parquet": "row group", "arrow": "record batch", "mapped": "record batch", "jsonl": "block"}
SUFFIXES = {"mapped": "arrow"}


def write(folder, kind):
    for number in range(4):
        table = pa.table({"id": range(100 * number, 100 * number + 100)})
        path = folder / f"part-{number}.{SUFFIXES.get(kind, kind)}"
        if kind == "parquet":
            pq.write_table(table, path, row_group_size=20)
        elif kind != "jsonl":
            options = pa.ipc.IpcWriteOptions(compression="zstd" if kind == "arrow" else None)
            with pa.ipc.new_stream(str(path), table.schema, options=options) as out:
                out.write_table(table, max_chunksize=20)
        else:
            path.write_text("".join(f'{{"id": {row}}}\n' for row in table["id"].to_pylist()))


def make_deadly(number):
    """Let the fourth block of one file, or its only one, end the process that reads it."""
    for kind, reader in READERS.items():
        read = reader.read

        def die(self, block, read=read, fatal=0 if kind == "jsonl" else 3):
            if "part-2" in str(getattr(self, "_path", None) or self.path) and block.number == fatal:
                os.kill(os.getpid(), signal.SIGKILL)
            return read(self, block)

        reader.read = die


@pytest.mark.parametrize(
    ("kind", "context", "shuffle"),
    [
        ("parquet", "fork", True),
        ("parquet", "spawn", False),
        ("arrow", "fork", False),
        ("mapped", "fork", True),
        ("jsonl", "fork", False),
    ],
)
def test_a_worker_that_a_file_kills_is_named_with_file_and_block(tmp_path, kind, context, shuffle):
    write(tmp_path, kind)
    dataset = me.read(tmp_path).lanes(2)
    dataset = dataset.shuffle(1) if shuffle else dataset
    whole = [row["id"] for row in dataset]
    dataset.set_epoch(0)
    loader = me.Loader(
        dataset, num_workers=2, multiprocessing_context=context, worker_init_fn=make_deadly, worker_restarts=0
    )
    got = []
    with pytest.raises(RuntimeError, match="exited unexpectedly with exit code -9") as caught:
        got.extend(row["id"] for row in loader)
    (note,) = caught.value.__notes__
    block = 0 if kind == "jsonl" else 3
    assert "When it died, worker " in note
    assert f"{tmp_path}/part-2.{SUFFIXES.get(kind, kind)}, {BLOCKS[kind]} {block}" in note
    trusting = me.Loader(dataset, num_workers=2, multiprocessing_context=context)
    trusting.load_state_dict(loader.state_dict())
    assert got + [row["id"] for row in trusting] == whole
