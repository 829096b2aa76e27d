"""From scans of files to the bytes of an index, and back."""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from midepoch._common.files import framed
from midepoch.formats import Scan
from midepoch.index.index import MAGIC, IndexView
from midepoch.storage.listing import Listing
from midepoch.storage.local import FileStamp


def index_bytes(listing: Listing, scans: Sequence[Scan]) -> pa.Buffer:
    """The bytes of an index of the listed files, from a scan of each."""
    schemas: dict[bytes, int] = {}
    stored: list[str] = []
    numbers = []
    for scan in scans:
        if scan.schema is None:
            numbers.append(-1)
            continue
        bare = scan.schema.remove_metadata().serialize().to_pybytes()
        if bare not in schemas:
            schemas[bare] = len(schemas)
            stored.append(scan.schema.serialize().to_pybytes().hex())
        numbers.append(schemas[bare])
    files = pa.table(
        {
            "name": pa.array(listing.names, pa.string()),
            "size": pa.array([stamp.size for stamp in listing.stamps], pa.int64()),
            "mtime_ns": pa.array([stamp.mtime_ns for stamp in listing.stamps], pa.int64()),
            "format": pa.array([scan.format for scan in scans], pa.string()),
            "seeks": pa.array([scan.seeks for scan in scans], pa.bool_()),
            "divisible": pa.array([scan.divisible for scan in scans], pa.bool_()),
            "schema": pa.array(numbers, pa.int64()),
            "blocks": pa.array([len(scan.blocks) for scan in scans], pa.int64()),
        }
    ).replace_schema_metadata({"schemas": " ".join(stored)})
    if any(stamp.version for stamp in listing.stamps):
        listed = pa.array([stamp.version for stamp in listing.stamps], pa.string())
        files = files.append_column("listed_version", listed)
    if any(scan.version for scan in scans):
        files = files.append_column("version", pa.array([scan.version for scan in scans], pa.string()))
    extents = np.array([block for scan in scans for block in scan.blocks], np.int64).reshape(-1, 3)
    blocks = pa.table(
        {name: np.ascontiguousarray(extents[:, number]) for number, name in enumerate(("offset", "length", "rows"))}
    )
    return pa.py_buffer(framed(_stream(files) + _stream(blocks), MAGIC))


def scans_of(view: IndexView) -> Mapping[tuple[str, FileStamp], Scan]:
    """The scans that an index was made of, by the name and stamp of the file."""
    extents = np.stack([view.block_offsets, view.block_lengths, view.block_rows], axis=1).tolist()
    bounds = view.first_blocks.tolist()
    return {
        (name, view.stamps[file]): Scan(
            view.formats[file],
            view.schemas[file],
            [tuple(extent) for extent in extents[bounds[file] : bounds[file + 1]]],
            view.seeks[file],
            view.versions[file],
            view.divisible[file],
        )
        for file, name in enumerate(view.names)
    }


def _stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())
