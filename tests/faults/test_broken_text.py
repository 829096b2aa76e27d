"""Damaged text files: each is an error that names the file, the line and what to do, before any row is delivered."""

import gzip
import json
import re
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest

import midepoch as me
from midepoch.formats import FORMATS
from midepoch.formats.base import Block
from midepoch.formats.text import records as text

GOOD = "".join(f'{{"a": {number}, "b": "x"}}\n' for number in range(100))


def error_of(path, content, **options):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises((me.DataFormatError, me.SchemaMismatchError)) as caught:
        me.read(path, **options)
    message = str(caught.value)
    assert path.name in message
    return message


@pytest.fixture(params=[1, 7, 10_000])
def _block_sizes(request):
    with patch.multiple(text, BLOCK_RECORDS=request.param, READ_BYTES=64):
        yield


@pytest.mark.usefixtures("_block_sizes")
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"a": 1', "line 103: Missing a comma or '}' after an object member"),
        ('{"a": 1}}', "line 103: "),
        ('{"a": 1} {"a": 2}', "line 103 has more than one value"),
        ("null", "line 103 is no JSON object"),
        ("[1, 2]", "line 103 is no JSON object"),
        ("text", "line 103 is no JSON object"),
        ('{"a": 1, "a": 2}', r"line 103: Column\(/a\) was specified twice"),
        ('{"b": "\\ud800"}', "line 103: The surrogate pair in string is invalid"),
        ('{"a": 1e999}', "line 103: Number too big"),
        ('{"b": "a\tb"}', "line 103: Invalid encoding in string"),
    ],
)
def test_an_error_names_the_number_of_the_damaged_line(tmp_path, line, message):
    path = tmp_path / "a.jsonl"
    content = f"\n{GOOD}\n{line}\n{GOOD}"
    assert re.search(message, error_of(path, content))
    assert re.search(message, error_of(tmp_path / "a.jsonl.gz", gzip.compress(content.encode())))
    assert "open the dataset again" in error_of(path, content)


@pytest.mark.usefixtures("_block_sizes")
def test_an_error_names_the_line_of_a_byte_that_is_not_utf8(tmp_path):
    content = GOOD.encode() + b'{"b": "\xe9"}\n'
    assert "line 101 is not UTF-8" in error_of(tmp_path / "a.jsonl", content)
    content = b"a,b\n" + b'1,"x\ny"\n' * 10 + b"1,\xe9\n1,2\n"
    assert "row 11 after the header is not UTF-8" in error_of(tmp_path / "a.csv", content)
    assert "a.csv" in error_of(tmp_path / "a.csv", b"a,\xe9\n1,2\n")


def test_a_clash_of_types_names_field_and_line(tmp_path):
    path = tmp_path / "a.jsonl"
    bad = GOOD + '{"a": "x", "b": "y"}\n'
    nested = '{"a": {"b": [1]}}\n{"a": {"b": [true]}}'
    elements = '[{"a": {"b": [1]}}, {"a": {"b": [true]}}]'
    for most in (10_000, 10, 1):
        with patch.object(text, "BLOCK_RECORDS", most):
            assert re.search("line 101: .*Field a has incompatible types: int64 vs string", error_of(path, bad))
            assert re.search("line 2: .*Field item has incompatible types: int64 vs bool", error_of(path, nested))
            assert re.search("element 2: .*Field item", error_of(tmp_path / "a.json", elements))


@pytest.mark.usefixtures("_block_sizes")
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[{"a": 1}', "is truncated: its array is not closed"),
        ('[{"a": "]', "is truncated: its array is not closed"),
        ("[", "is truncated: its array is not closed"),
        ('[{"a": 1}] {"a": 2}', "has more text after its array"),
        ('[{"a": 1}]]', "has more text after its array"),
        ('[{"a": 1}, {"a": }]', "element 2: Invalid value"),
        ('[{"a": 1}, {"a": 2} {"a": 3}]', "element 2 has more than one value"),
        ('[{"a": 1}, 7]', "element 2 is no JSON object"),
        ('[{"a": 1}, null]', "element 2 is no JSON object"),
        ('[{"a": 1}, {"a": 1]}]', "has more text after its array"),
        ("[[1], [2]]", "element 1 is no JSON object"),
        ('[{"a": 1}, , {"a": 2}]', "element 2 has a comma without an element before it"),
        ('[, {"a": 1}]', "element 1 has a comma without an element before it"),
        ('[{"a": 1},]', "has a comma after the last element of its array"),
        ('[{"a": 1}, \n ]\n', "has a comma after the last element of its array"),
        ("[,]", "has a comma after the last element of its array"),
    ],
)
def test_a_broken_array(tmp_path, content, message):
    assert message in error_of(tmp_path / "a.json", content)


@pytest.mark.usefixtures("_block_sizes")
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b\n" + "1,2\n" * 50 + "1,2,3\n1,2\n", "row 51 after the header: Expected 2 columns, got 3: 1,2,3."),
        ('a,b\n"x\ny",2\n1\n', "row 2 after the header: Expected 2 columns, got 1: 1."),
        ("a,b\n1,2\n\n1\n", "row 2 after the header: Expected 2 columns, got 1: 1."),
        ('a,b\n1,"x\n2,y\n', "ends inside quotes"),
        ('a,"b\n1,2\n', "ends inside quotes"),
        ("a,\n1,2\n", "a column without a name in its first line"),
        ("a,b\r1,2\r", "ends its lines with CR alone"),
        ("a,a\n1,2\n", "has the column 'a' more than once"),
    ],
)
def test_a_broken_csv(tmp_path, content, message):
    assert message in error_of(tmp_path / "a.csv", content)


def test_a_quote_that_is_never_closed_is_not_read_into_memory_without_end(tmp_path):
    with patch.object(text, "READ_BYTES", 100):
        unclosed = 'a\n1\n"' + "x\n" * 50_000
        assert "a record of more than max_record_bytes (10,000)" in error_of(
            tmp_path / "a.csv", unclosed, max_record_bytes="10kB"
        )
        assert "has a header of more than" in error_of(tmp_path / "b.csv", "x" * 200_000, max_record_bytes=10_000)
        assert "ends inside quotes" in error_of(tmp_path / "a.csv", unclosed, max_record_bytes=None)


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.json"])
@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".zst", pa.Codec("zstd").compress)])
def test_a_truncated_or_damaged_compressed_file(tmp_path, name, suffix, pack):
    lines = GOOD.splitlines()
    content = {"a.jsonl": GOOD, "a.csv": "a,b\n" + "1,x\n" * 99, "a.json": f"[{','.join(lines)}]"}[name].encode()
    whole = bytes(pack(content))
    path = tmp_path / (name + suffix)
    path.write_bytes(whole)
    assert len(me.read(path)) >= 99
    for size in (4, 8, 20, len(whole) // 2, len(whole) - 1):
        message = error_of(path, whole[:size])
        assert "cannot be decompressed" in message
        assert "copy or write it again" in message
    damaged = bytearray(whole)
    damaged[len(whole) // 2 : len(whole) // 2 + 8] = b"\xff" * 8
    error_of(path, bytes(damaged))


def test_random_damage_is_a_named_error_or_readable_rows(tmp_path):
    random = np.random.default_rng(0)
    wholes = {
        "a.jsonl": GOOD.encode(),
        "a.json": json.dumps([json.loads(line) for line in GOOD.splitlines()], indent=1).encode(),
        "a.csv": b'a,b\n1,"x\ny"\n2,z\n' * 30,
        "a.jsonl.gz": gzip.compress(GOOD.encode()),
    }
    messages = []
    for name, whole in wholes.items():
        for _ in range(80):
            damaged = bytearray(whole)
            for place in random.integers(0, len(whole), 2):
                damaged[place] = random.choice(list(b'\0\x80\xff"\\{}[],:\n\r 9n'))
            path = tmp_path / name
            path.write_bytes(damaged)
            try:
                list(me.read(path))
            except (me.DataFormatError, me.SchemaMismatchError) as error:
                messages.append((name, str(error)))
    assert len(messages) > 80
    assert all(name in message for name, message in messages)


def test_bytes_that_changed_after_indexing_are_an_error(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n')
    schema = pa.schema([("a", pa.int64())])
    reader = FORMATS["jsonl"].open_blocks(str(path), schema, schema)
    assert reader.read(Block(0, 0, 18, 2)).num_rows == 2
    with pytest.raises(me.DataFormatError, match=r"a\.jsonl has 2 rows from byte 0 on, and had 3 when"):
        reader.read(Block(0, 0, 18, 3))
    for content in ('{"a": "x"}\n', "null\nnull\n", "", "x"):
        path.write_text(content)
        with pytest.raises(me.DataFormatError, match=r"a\.jsonl cannot be parsed from byte 0 on"):
            FORMATS["jsonl"].open_blocks(str(path), schema, schema).read(Block(0, 0, 18, 2))
    path = tmp_path / "a.csv"
    for content in ("a\nb\n", "", "1,2\n"):
        path.write_text(content)
        with pytest.raises(me.DataFormatError, match=r"a\.csv cannot be parsed from byte 0 on"):
            FORMATS["csv"].open_blocks(str(path), schema, schema).read(Block(0, 0, 18, 2))
