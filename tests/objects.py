"""Objects in a store without a server: a client that remembers what was read, and fsspec's store in memory."""

import io
import os
from types import SimpleNamespace

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

from midepoch.formats import file_suffixes
from midepoch.storage import listing
from midepoch.storage.objects import StoredFile
from midepoch.storage.retry import OtherVersionError, RetryPolicy
from midepoch.storage.store import Store

SECRETS = {
    "key": "AKIA12345",
    "secret": "very/secret+value",
    "token": "a-token-of-it",
    "endpoint": "http://hidden.host:99",
}
QUICK = RetryPolicy(attempts=3, first=0.0, most=0.0)


class Counting:
    """A client of one object that remembers what was read."""

    version = "1"

    def __init__(self, content):
        self.content, self.size, self.read = content, len(content), []

    def open(self, url, size=None):
        version = self.version

        def read_at(nbytes, offset):
            data = self.read_at(nbytes, offset)
            if self.version != version:
                raise OtherVersionError
            return data

        return SimpleNamespace(size=self.size, version=version, read_at=read_at)

    def read_at(self, nbytes, offset):
        self.read.append((offset, nbytes))
        return pa.py_buffer(self.content[offset : offset + nbytes])


def find(source, storage_options=None):
    """What a source names, with the suffixes of all formats."""
    return listing.find(source, storage_options, suffixes=file_suffixes())


def stored(content, **known):
    store = Store("s3://bucket/x", SECRETS, QUICK)
    client = Counting(content)
    store._clients[os.getpid()] = client
    return StoredFile(store, "s3://bucket/x", **known), client


def put(path, content):
    """Write an object of the store in memory."""
    fsspec.filesystem("memory").pipe_file(path, content)


def parquet_bytes(table, rows, **options):
    """A table as a Parquet file, with ``rows`` rows in a row group."""
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=rows, **options)
    return sink.getvalue()


def numbered(first, last, rows=10, *, noise=0):
    """A Parquet file of the ids from first to last, perhaps with random bytes beside them."""
    table = pa.table({"id": list(range(first, last)), "noise": [os.urandom(noise) for _ in range(first, last)]})
    return parquet_bytes(table, rows)


def put_rows(folder="data", files=3, rows=40):
    """Write Parquet files to a folder of the store in memory, and return its URL."""
    for number in range(files):
        put(f"/{folder}/part-{number}.parquet", numbered(number * rows, (number + 1) * rows))
    return f"memory://{folder}"
