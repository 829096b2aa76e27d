"""Text files for tests: rows as JSON and CSV, plain and compressed, in small blocks."""

import csv
import gzip
import io
import json
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings

import midepoch as me
from midepoch.formats.text import records as text

many = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


BOM = "\ufeff".encode()


def small_blocks(records=3, size=1 << 20, packed=100, read=None):
    return patch.multiple(
        text,
        BLOCK_RECORDS=records,
        BLOCK_BYTES=size,
        PACKED_BYTES=packed,
        READ_BYTES=read or text.READ_BYTES,
    )


def zstd(data):
    return pa.Codec("zstd").compress(data, asbytes=True)


def as_is(data):
    return data


PACKED = [("", as_is), (".gz", gzip.compress), (".zst", zstd)]


packed = pytest.mark.parametrize(("suffix", "pack"), PACKED, ids=["plain", "gz", "zst"])


def rows_of(path, **options):
    return list(me.read(path, **options))


def lines(rows, end="\n"):
    return "".join(json.dumps(row) + end for row in rows).encode()


def table_of(rows, end="\r\n"):
    sink = io.StringIO()
    csv.writer(sink, lineterminator=end).writerows([list(rows[0]), *(row.values() for row in rows)])
    return sink.getvalue().encode()


def text_file(path, rows, pack=as_is):
    kind = path.name.split(".")[1]
    content = {"jsonl": lines, "json": lambda rows: json.dumps(rows).encode(), "csv": table_of}[kind](rows)
    path.write_bytes(pack(content))
    return path


ROWS = [{"id": number, "text": f'row\n"{number}", of many'} for number in range(50)]


KINDS = ["jsonl", "json", "csv"]


def completed(values_of, shape=None):
    """Rows with None for each key that others have, at every level, as columns have them."""
    dicts = [value for value in values_of if isinstance(value, dict)]
    lists = [value for value in values_of if isinstance(value, list)]
    if dicts:
        names = list(dict.fromkeys(name for value in dicts for name in value))
        columns = {name: completed([value.get(name) for value in dicts]) for name in names}
        filled = iter(
            [dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)] or [{}] * len(dicts)
        )
        return [next(filled) if isinstance(value, dict) else value for value in values_of]
    if lists:
        inside = iter(completed([one for value in lists for one in value]))
        return [[next(inside) for _ in value] if isinstance(value, list) else value for value in values_of]
    return list(values_of)
