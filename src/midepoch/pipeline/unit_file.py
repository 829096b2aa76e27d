"""An Arrow file that appears as a whole, with types that grow to hold all its rows."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa

from midepoch._common.files import open_privately, remove, temporary_name
from midepoch.pipeline.units import write_error

READABLE = 0o644
"""The permissions of files that others may read: rows of a cache are data like any other."""


class UnitFile:
    """A file under a temporary name. :meth:`finish` gives it its own; a file that is not finished is removed."""

    def __init__(self, path: Path, schema: pa.Schema | None = None) -> None:
        self._path, self._temporary = path, temporary_name(path)
        self.schema = pa.schema([]) if schema is None else schema
        self.is_empty = True
        with self._explained():
            self._sink = open_sink(self._temporary)
            self._writer = pa.ipc.new_file(self._sink, self.schema)

    def write(self, batch: pa.RecordBatch, schema: pa.Schema) -> None:
        """Add a batch. If the schema is another one, the batches before it are written again in that."""
        if not schema.equals(self.schema):
            self._rewrite(schema)
        with self._explained():
            self._writer.write_batch(as_schema(batch, schema))
        self.is_empty = False

    def _rewrite(self, schema: pa.Schema) -> None:
        self._close()
        wider = UnitFile(self._path, schema)
        try:
            if not self.is_empty:
                for batch in read_batches(self._temporary):
                    wider.write(batch, schema)
        except BaseException:
            wider.discard()
            raise
        remove(self._temporary)
        self._temporary, self._sink, self._writer, self.schema = wider._temporary, wider._sink, wider._writer, schema

    def finish(self) -> None:
        """Give the file its name. One that is there stays: it has the same rows, and may be in use.

        A cluster that lost sight of a worker starts its work again, and both may finish.
        """
        self._close()
        with self._explained():
            try:
                os.link(self._temporary, self._path)
            except FileExistsError:
                pass
            except OSError:  # not every file system has hard links
                if not self._path.exists():
                    self._temporary.replace(self._path)
        remove(self._temporary)

    def replace(self) -> None:
        """Give the file its name, in place of the one that is there, unless that has the same schema already."""
        self._close()
        with self._explained():
            if not pa.ipc.open_file(self._path).schema.equals(self.schema):
                self._temporary.replace(self._path)
        remove(self._temporary)

    def _close(self) -> None:
        with self._explained():
            self._writer.close()
            self._sink.close()

    def discard(self) -> None:
        """Remove the file, unless it has its name already."""
        with suppress(OSError):  # a full disk is an error once more
            self._sink.close()
        remove(self._temporary)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Say what an error of the file system means for the cache."""
        try:
            yield
        except OSError as error:
            raise write_error(error, self._path.parent, "The cache") from error


def as_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A batch with the columns of a schema, in its order and types. Values that would change raise."""
    return batch if batch.schema.equals(schema) else batch.select(schema.names).cast(schema)


def read_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """The batches of a file, mapped."""
    with pa.memory_map(str(path)) as file, pa.ipc.open_file(file) as reader:
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)


def open_sink(path: Path) -> pa.NativeFile:
    """A new file to write to, which no other user can change, unless those of the folder are trusted."""
    open_privately(path, READABLE).close()
    return pa.OSFile(str(path), "wb")
