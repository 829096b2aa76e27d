"""An object of a store without a server, and a client that remembers what was read of it."""

import os
from types import SimpleNamespace

import pyarrow as pa

from midepoch.formats import file_suffixes
from midepoch.storage import listing
from midepoch.storage.objects import StoredFile
from midepoch.storage.retry import RetryPolicy
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

    def open(self, url):
        return SimpleNamespace(size=self.size, version=self.version, read_at=self.read_at)

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
