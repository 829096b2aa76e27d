"""What is fetched together: spans into ranges, blocks into stretches, and one look for all of them."""

import io
import os
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from threading import Event, Timer

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from midepoch import formats
from midepoch.errors import DataChangedError
from midepoch.formats import Block, parquet
from midepoch.index.build import open_index
from midepoch.index.remote import StoredBlocks
from midepoch.sources.fetcher import FETCH_THREADS, BlockFetcher
from midepoch.storage.options import Fetch
from midepoch.storage.ranges import GROUP_BLOCKS, GROUP_BYTES, grouped, joined
from objects import find, stored

SPANS = st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 300)).map(lambda one: (one[0], one[0] + one[1])))


@given(SPANS, st.integers(0, 100), st.integers(1, 500))
def test_every_span_lies_in_one_range(spans, hole, most):
    ranges = joined(spans, hole, most)
    assert ranges == sorted(ranges)
    for begin, end in spans:
        assert any(first <= begin and end <= last for first, last in ranges)
    wanted = {number for begin, end in spans for number in range(begin, end)}
    for first, last in ranges:
        assert last - first <= most or (first, last) in spans
        # What nobody wants lies between two spans, and is no longer than a hole.
        gaps = "".join("x" if number in wanted else " " for number in range(first, last))
        assert gaps.strip() == gaps
        assert not any(len(gap) > hole for gap in gaps.split("x"))


def test_ranges_are_joined_where_that_is_allowed_and_no_further():
    assert joined([(0, 10), (10, 20), (25, 30)], gap=5, most=30) == [(0, 30)]
    assert joined([(0, 10), (10, 20), (26, 30)], gap=5, most=30) == [(0, 20), (26, 30)]
    assert joined([(0, 10), (10, 20), (20, 31)], gap=5, most=30) == [(0, 20), (20, 31)]
    assert joined([(0, 50), (50, 51)], gap=5, most=30) == [(0, 50), (50, 51)]
    assert joined([]) == []


@given(st.lists(st.integers(0, 30), unique=True))
def test_stretches_are_the_numbers_cut_where_one_does_not_join(numbers):
    found = grouped(numbers, lambda stretch, number: number == stretch[-1] + 1 and number % 5 > 0)
    assert [number for stretch in found for number in stretch] == numbers
    for stretch in found:
        assert stretch == list(range(stretch[0], stretch[-1] + 1))
        assert all(number % 5 for number in stretch[1:])
    for one, two in pairwise(found):
        assert two[0] != one[-1] + 1 or two[0] % 5 == 0


def files_of(url, read_ahead, columns=None, lanes=1):
    index = open_index(find(url))
    return BlockFetcher(index, index.schema(columns), Fetch(read_ahead=read_ahead), lanes)


def put(path, content):
    fsspec.filesystem("memory").pipe_file(path, content)


def written(table, rows, **options):
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=rows, **options)
    return sink.getvalue()


@pytest.fixture
def url():
    table = pa.table({"id": range(4000), "x": [float(number) for number in range(4000)]})
    for number in range(2):
        put(f"/joining/p-{number}.parquet", written(table, 100, compression="none", use_dictionary=False))
    yield "memory://joining"
    fsspec.filesystem("memory").rm("/joining", recursive=True)


def test_blocks_join_those_before_them_in_their_file_up_to_a_part_of_what_is_read_ahead(url):
    files = files_of(url, GROUP_BYTES * FETCH_THREADS)
    assert [len(one) for one in grouped(range(80), files.joins)] == [GROUP_BLOCKS, 8, GROUP_BLOCKS, 8]
    assert grouped([3, 4, 6, 5, 39, 40], files.joins) == [[3, 4], [6], [5], [39], [40]]
    assert not files.joins([79], 80)
    length = int(files.view.block_lengths[0])
    for blocks in (1, 3, 4):
        for spare, expected in ((0, blocks), (-1, max(1, blocks - 1))):
            few = files_of(url, FETCH_THREADS * (blocks * length + spare))
            assert len(grouped(range(40), few.joins)[0]) == expected
            assert (
                len(grouped(range(40), files_of(url, 2 * FETCH_THREADS * blocks * length, lanes=2).joins)[0]) == blocks
            )
    assert len(grouped(range(40), files_of(url, 0).joins)) == 40
    # The bytes of some columns do not lie side by side.
    assert len(grouped(range(40), files_of(url, GROUP_BYTES, ["id"]).joins)) == 40


def test_what_was_promised_is_given_up_when_the_threads_go(url):
    files, go_on = files_of(url, GROUP_BYTES), Event()
    pool = files._thread_pools[False] = ThreadPoolExecutor(1)
    pool.submit(go_on.wait)
    promises = files.read_ahead([0, 1])
    Timer(0.05, go_on.set).start()
    files.close()
    assert all(promise.cancelled() for promise in promises.values())


def test_what_is_given_up_is_not_read_and_the_rest_of_its_stretch_is(url):
    files, go_on = files_of(url, GROUP_BYTES), Event()
    pool = files._thread_pools[False] = ThreadPoolExecutor(1)
    pool.submit(go_on.wait)
    promises = files.read_ahead([0, 1, 2])
    assert promises[1].cancel()
    go_on.set()
    assert promises[0].result(100)[0]["id"].to_pylist() == list(range(100))
    assert promises[2].result(100)[0]["id"].to_pylist() == list(range(200, 300))
    assert promises[1].cancelled()
    files.close()


def nested():
    """Columns of all shapes, of which the names of some are the beginnings of those of others."""
    numbers = range(60)
    return pa.table(
        {
            "id": numbers,
            "a": [{"b": number, "c": [str(number), None]} for number in numbers],
            "a.b": [number * 3 for number in numbers],
            "ab": [f"word {number % 3}" for number in numbers],
            "m": pa.array([[(str(number), number)] for number in numbers], pa.map_(pa.string(), pa.int32())),
            "none": pa.nulls(60),
            "noise": [os.urandom(20_000) for _ in numbers],
        }
    )


def opened(content, names):
    """An object of row groups, to be read block by block, and the client that remembers requests."""
    file, client = stored(content)
    scan = formats.scan_file(file)
    wanted = pa.schema([scan.schema.field(name) for name in names])
    blocks = [Block(number, *location) for number, location in enumerate(scan.blocks)]
    reader = StoredBlocks(file, lambda: parquet.open_blocks(file, scan.schema, wanted), lambda: None)
    client.read.clear()
    return reader, blocks, client, file


@pytest.mark.parametrize("version", ["1.0", "2.6"])
@pytest.mark.parametrize(
    "names", [["id"], ["a"], ["a.b"], ["ab", "id"], ["m", "none"], [], ["noise"], nested().column_names]
)
def test_what_is_fetched_first_is_all_that_decoding_needs(names, version, tmp_path):
    table = nested()
    content = written(table, 10, version=version, data_page_size=3000)
    (tmp_path / "x.parquet").write_bytes(content)
    local = parquet.open_blocks(str(tmp_path / "x.parquet"), table.schema, table.select(names).schema)
    reader, blocks, client, file = opened(content, names)
    assert len(blocks) == 6
    wanted = [span for block in blocks[1:5] for span in reader._reader.spans(block)]
    file.fetch(wanted)
    asked = list(client.read)
    file._recent = ()
    client.read.clear()
    read = list(reader.read_all(blocks[1:5]))
    assert client.read == asked
    assert read == [local.read(block) for block in blocks[1:5]]
    assert [data.num_rows for data in read] == [10] * 4
    if names == table.column_names:
        assert len(client.read) == 1


def test_what_was_not_foreseen_is_fetched_and_looked_at(monkeypatch):
    table = nested().select(["id", "noise"])
    content = written(table, 10, compression="none")
    spans = parquet.ParquetBlocks.spans
    monkeypatch.setattr(
        parquet.ParquetBlocks, "spans", lambda self, block: [(begin, end - 1) for begin, end in spans(self, block)]
    )
    reader, blocks, client, _ = opened(content, table.column_names)
    assert pa.concat_tables(reader.read_all(blocks)).select(["id"]) == table.select(["id"])
    reader, blocks, client, _ = opened(content, table.column_names)
    rest = reader.read_all(blocks)
    next(rest)
    client.version = "2"
    with pytest.raises(DataChangedError, match="another version"):
        list(rest)  # holes are fetched too, so that it is the end of the last block alone


def test_one_look_is_for_all_whose_bytes_had_come_when_it_began(monkeypatch):
    file, client = stored(bytes(1 << 20))
    assert file.size
    looks, began, go_on = [], Event(), Event()
    plain = type(client).open

    def stat(url):
        looks.append(url)
        found = plain(client, url)
        if len(looks) == 1:
            began.set()
            go_on.wait(100)
        return found

    monkeypatch.setattr(client, "open", stat)
    with ThreadPoolExecutor(3) as pool:
        file.read_at(70_000, 0)
        first = pool.submit(file.check)
        began.wait(100)
        # These came after the first look began, so it says nothing of them.
        file.read_at(70_000, 100_000)
        file.read_at(70_000, 200_000)
        others = [pool.submit(file.check), pool.submit(file.check)]
        client.version = "2"
        go_on.set()
        first.result(100)
        for one in others:
            with pytest.raises(DataChangedError, match="another version"):
                one.result(100)
        client.version = "1"
        assert len(looks) == 3
        looks[:] = ["none waits any more"]
        file.check()
        file.check()
        assert len(looks) == 2
