import os

import numpy as np
import pyarrow as pa
import pytest
import torch

import midepoch as me
from files import numbers, write
from midepoch.counting import survey
from midepoch.dataset import file_rows, plan_of
from midepoch.pipeline import cache as module
from midepoch.pipeline.cache import Cache
from midepoch.testing import assert_elastic, assert_resumes

ROWS = 60


@pytest.fixture
def folder(tmp_path):
    """Three Arrow files with the ids 0 to 59, in blocks of 5 rows."""
    for number in range(3):
        blocks = [numbers(first, first + 5, name="id") for first in range(20 * number, 20 * number + 20, 5)]
        write(tmp_path / "data" / f"{number}.arrow", blocks)
    return tmp_path / "data"


@pytest.fixture(autouse=True)
def _small_units(monkeypatch):
    """Units of one or two blocks, so that few rows have many units, made in this process."""
    monkeypatch.setattr("midepoch._common.jobs.usable_cores", lambda: 1)
    monkeypatch.setattr(survey, "SMALLEST_UNIT", 100)


def ids(dataset):
    return [row["id"] for row in dataset]


def is_even(row):
    return row["id"] % 2 == 0


def tokenise(row):
    return {"input_ids": list(range(row["id"] % 7))}


def again(monkeypatch):
    """From now on nothing may be made."""
    monkeypatch.setattr(Cache, "_make", None)


def test_cached_rows_are_those_of_the_pipeline(folder, tmp_path, monkeypatch):
    dataset = me.read(folder).map(tokenise).filter(is_even)
    expected = list(dataset)
    cached = dataset.cache(tmp_path / "cache")
    assert list(cached) == expected
    assert len(cached) == ROWS // 2
    assert plan_of(cached).pipeline.stages == ()
    assert len(list((tmp_path / "cache").glob("*.arrow"))) > 5
    again(monkeypatch)
    assert list(me.read(folder).map(tokenise).filter(is_even).cache(tmp_path / "cache")) == expected


def test_files_are_mapped_and_tokens_are_lists_of_int32(folder, tmp_path):
    cached = me.read(folder).map(tokenise).cache(tmp_path / "cache")
    assert cached.schema.field("input_ids").type == pa.list_(pa.int32())
    assert set(file_rows(cached, "").index.view.formats) == {"arrow"}
    packed = cached.pack(16).survey()
    assert plan_of(packed).pipeline.survey.lengths(np.arange(ROWS)).tolist() == [row % 7 for row in range(ROWS)]


def test_the_format_stays(folder, tmp_path):
    dataset = me.read(folder).map(lambda row: {"x": torch.full((row["id"] % 3,), row["id"])}).with_format("torch")
    cached = dataset.cache(tmp_path / "cache")
    for one, other in zip(cached, dataset, strict=True):
        assert one["x"].dtype == other["x"].dtype == torch.int64
        assert one["x"].tolist() == other["x"].tolist()


def test_rows_of_files_keep_their_types_and_metadata(tmp_path):
    schema = pa.schema(
        [("a", pa.list_(pa.int64(), 2)), ("b", pa.dictionary(pa.int8(), pa.string())), ("c", pa.large_list(pa.int8()))],
        metadata={"huggingface": "{}"},
    )
    columns = {"a": [[1, 2], [3, 4]], "b": pa.array(["x", "y"]).dictionary_encode(), "c": [[1], []]}
    batch = pa.table({"a": columns["a"], "b": columns["b"], "c": columns["c"]}).cast(schema).to_batches()[0]
    write(tmp_path / "a.arrow", [batch])
    cached = me.read(tmp_path / "a.arrow").filter(lambda rows: [False, True], batched=True).cache(tmp_path / "cache")
    assert cached.schema.types == [pa.list_(pa.int64(), 2), pa.string(), pa.large_list(pa.int8())]
    assert cached.schema.metadata == {b"huggingface": b"{}"}
    assert list(cached) == [{"a": [3, 4], "b": "y", "c": []}]


def test_a_shuffle_of_rows_is_the_same_if_no_row_is_filtered(folder, tmp_path):
    dataset = me.read(folder).shuffle(seed=3, level="row").map(tokenise)
    cached = dataset.cache(tmp_path / "cache")
    for _ in range(2):  # both epochs
        assert list(cached) == list(dataset)


@pytest.mark.parametrize("level", ["file", "block", "row"])
def test_a_shuffle_acts_on_the_cached_rows(folder, tmp_path, level):
    before = me.read(folder).shuffle(seed=3, level=level).filter(is_even).cache(tmp_path / "cache")
    after = me.read(folder).filter(is_even).cache(tmp_path / "cache").shuffle(seed=3, level=level)
    first = ids(before)
    assert first == ids(after)
    assert sorted(first) == list(range(0, ROWS, 2))
    assert first != sorted(first)
    assert ids(before) != first


def test_fixed_steps_choose_the_rows_that_are_cached(folder, tmp_path):
    dataset = me.read(folder).skip(7).take(40).filter(is_even)
    assert ids(dataset.cache(tmp_path / "a")) == list(range(8, 47, 2))
    train, test = me.read(folder).train_test_split(0.3, seed=1)
    cached = [ids(half.filter(is_even).cache(tmp_path / name)) for half, name in ((train, "train"), (test, "test"))]
    assert cached == [ids(train.filter(is_even)), ids(test.filter(is_even))]


@pytest.mark.parametrize(
    "build",
    [
        lambda rows: rows,
        lambda rows: rows.skip(10),
        lambda rows: rows.skip(10).shuffle(seed=1),
        lambda rows: rows.select([3, 20, 5, 9, 30]),
        lambda rows: rows.filter(lambda row: row["id"] % 3),
    ],
)
def test_rows_that_are_left_out_are_not_cached(folder, tmp_path, build):
    rows = build(me.read(folder)).without([("0.arrow", 3), ("1.arrow", 0)])
    assert sorted(row["id"] for row in rows.cache(tmp_path / "cache")) == sorted(row["id"] for row in rows)


def test_cached_datasets_resume_on_any_readers(folder, tmp_path):
    cached = me.read(folder).shuffle(seed=2).map(tokenise).filter(is_even).cache(tmp_path / "cache")
    assert_resumes(cached.pack(16, window=8), every=3)
    assert_elastic(cached.lanes(4).batch(2), [(2, 2), (3, 1), (1, 3)])


def test_a_subclass_stays_unless_it_knows_its_files(folder, tmp_path):
    hf = me.SimpleArrowIterableDataset(folder).shuffle(seed=1, level="block").filter(is_even).cache(tmp_path / "hf")
    assert type(hf) is me.SimpleArrowIterableDataset
    assert all(path.startswith(str(tmp_path / "hf")) for path in hf.arrow_files)
    assert_resumes(hf, every=7)
    structured = me.StructuredDataset(folder, shuffle=True).map(tokenise).cache(tmp_path / "structured")
    assert type(structured) is me.Dataset
    assert sorted(ids(structured)) == list(range(ROWS))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda rows: rows.map(lambda row, rng: row, with_rng=True), "map with with_rng=True.*Put it after cache"),
        (lambda rows: rows.batch(2), "batch makes items of several rows. Put batch after cache"),
        (lambda rows: rows.map(tokenise).pack(8), "pack makes items of several rows. Put pack after cache"),
        (lambda rows: me.mix([rows, rows]), "Cache each of the datasets before mixing them"),
        (
            lambda rows: rows.shuffle(seed=1).take(9).filter(is_even),
            "take after shuffle chooses rows before.*after cache",
        ),
    ],
)
def test_what_cannot_be_cached_is_refused_with_a_remedy(folder, tmp_path, build, message):
    with pytest.raises(ValueError, match=message):
        build(me.read(folder)).cache(tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def other(row):
    return row["id"] > 3


@pytest.mark.parametrize(
    ("build", "version", "message"),
    [
        (lambda rows: rows.filter(other), None, "fn of stage 1, filter, was 'is_even' then and is 'other' now"),
        (lambda rows: rows.filter(is_even).map(tokenise), None, r"stage 2, map\(fn='tokenise'\), was added"),
        (lambda rows: rows, None, r"stage 1, filter\(fn='is_even'\), was removed"),
        (lambda rows: rows.take(9).filter(is_even), None, "stage 1 was filter.* then and is take.* now"),
        (lambda rows: rows.filter(is_even), 2, "version was None then and is 2 now"),
    ],
)
def test_a_cache_of_other_stages_is_refused(folder, tmp_path, build, version, message):
    me.read(folder).filter(is_even).cache(tmp_path / "cache")
    with pytest.raises(me.CacheMismatchError, match=f"cache of other rows: {message}. Pass another folder, or delete"):
        build(me.read(folder)).cache(tmp_path / "cache", version=version)


def test_order_shards_and_lanes_are_not_part_of_a_cache(folder, tmp_path, monkeypatch):
    me.read(folder).filter(is_even).cache(tmp_path / "cache", version="a")
    again(monkeypatch)
    me.read(folder).shuffle(seed=5).shard(2, 0).filter(is_even).lanes(8).cache(tmp_path / "cache", version="a")


def test_a_cache_of_changed_data_is_refused(folder, tmp_path):
    me.read(folder).filter(is_even).cache(tmp_path / "cache")
    write(folder / "1.arrow", [numbers(0, 30, name="id")])
    message = "1.arrow has 30 rows; the cache was made when it had 20. Pass another folder"
    with pytest.raises(me.CacheMismatchError, match=message):
        me.read(folder).filter(is_even).cache(tmp_path / "cache")


def test_a_cache_of_files_that_were_written_again_is_refused(folder, tmp_path):
    me.read(folder).filter(is_even).cache(tmp_path / "cache")
    os.utime(folder / "1.arrow", (2e9, 2e9))
    with pytest.raises(me.CacheMismatchError, match=r"were written again .*the newest is 1.arrow"):
        me.read(folder).filter(is_even).cache(tmp_path / "cache")


def test_a_folder_of_something_else_is_refused(folder, tmp_path):
    with pytest.raises(me.CacheMismatchError, match=r"something else than a cache, such as 0.arrow"):
        me.read(folder).filter(is_even).cache(folder)
    (tmp_path / "file").touch()
    with pytest.raises(me.CacheMismatchError, match=r"something else than a cache\. Pass a new"):
        me.read(folder).filter(is_even).cache(tmp_path / "file")


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"format": 1, "data": {}}'])
def test_a_damaged_manifest_is_named(folder, tmp_path, content):
    me.read(folder).filter(is_even).cache(tmp_path / "cache")
    (tmp_path / "cache" / "cache.json").write_bytes(content)
    with pytest.raises(me.CacheMismatchError, match=r"cache.json is damaged .*Delete .*cache again"):
        me.read(folder).filter(is_even).cache(tmp_path / "cache")


def test_a_file_that_was_deleted_is_made_again(folder, tmp_path):
    dataset = me.read(folder).map(tokenise)
    dataset.cache(tmp_path / "cache")
    (tmp_path / "cache" / "part-000002.arrow").unlink()
    assert list(dataset.cache(tmp_path / "cache")) == list(dataset)


@pytest.mark.parametrize("rows", [1, 4, 1000])
def test_the_type_of_a_column_holds_all_its_values(folder, tmp_path, monkeypatch, rows):
    monkeypatch.setattr(module, "BATCH_ROWS", rows)

    def late(row):
        number = row["id"]
        return {
            "text": "text" if number > 12 else None,
            "list": [1] if number > 33 else [],
            "wide": [2**40 if number == 46 else number],
            "float": number / 2 if number % 20 > 16 else number,
        }

    dataset = me.read(folder).map(late)
    cached = dataset.cache(tmp_path / "cache")
    lists = [pa.list_(pa.int32()), pa.list_(pa.int64())]
    assert cached.schema.types == [pa.int64(), pa.string(), *lists, pa.float64()]
    assert list(cached) == list(dataset)
    assert [path.name for path in (tmp_path / "cache").glob(".*")] == [".lock"]


def test_files_that_were_not_given_the_common_type_get_it_at_the_next_call(folder, tmp_path, monkeypatch):
    called = []

    def widens(row):
        called.append(row["id"])
        return {"x": [2**40 if row["id"] == 33 else 1]}

    def stops(cache, schema, unit):
        if unit.number == 4:
            raise KeyboardInterrupt
        rewrite(cache, schema, unit)

    dataset, rewrite = me.read(folder).map(widens), Cache.rewrite_unit
    expected = list(dataset)
    monkeypatch.setattr(Cache, "rewrite_unit", stops)
    with pytest.raises(KeyboardInterrupt):
        dataset.cache(tmp_path / "cache")
    monkeypatch.setattr(Cache, "rewrite_unit", rewrite)
    called.clear()
    cached = dataset.cache(tmp_path / "cache")
    assert called == []
    assert list(cached) == expected


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("text", "'x' holds 'text', at row 13 of 1.arrow, and was list<item: int32> before"),
        ([True], r"'x' holds \[True\], at row 13 of 1.arrow, and was list<item: int32> before"),
        ([1, "a"], r"'x' holds \[1, 'a'\], at row 13 of 1.arrow"),
    ],
)
@pytest.mark.parametrize("rows", [1, 1000])
def test_a_value_of_another_type_names_the_row(folder, tmp_path, monkeypatch, value, message, rows):
    monkeypatch.setattr(module, "BATCH_ROWS", rows)
    with pytest.raises(me.SchemaMismatchError, match=message):
        me.read(folder).map(lambda row: {"x": value if row["id"] == 33 else [1]}).cache(tmp_path / "cache")


@pytest.mark.parametrize(
    ("values", "message"), [(("a", 1), "string vs int64"), ((1, 2), r"columns are \['id', 'x'\] and \['id', 'y'\]")]
)
def test_files_of_other_types_or_columns_are_named(folder, tmp_path, values, message):
    def make(row):
        late = row["id"] >= 30
        return {"y" if late and values[0] == 1 else "x": values[late]}

    with pytest.raises(me.SchemaMismatchError, match=f"part-000006.arrow do not have the columns .*{message}"):
        me.read(folder).map(make).cache(tmp_path / "cache")


@pytest.mark.parametrize("rows", [1, 1000])
def test_rows_with_other_columns_are_named(folder, tmp_path, monkeypatch, rows):
    monkeypatch.setattr(module, "BATCH_ROWS", rows)
    with pytest.raises(me.SchemaMismatchError, match=r"columns .'id', 'y'.* at row 13 of 1.arrow, and those before it"):
        me.read(folder).map(lambda row: {"y" if row["id"] == 33 else "x": 1}).cache(tmp_path / "cache")


def test_items_that_are_no_dicts_are_refused(folder, tmp_path):
    with pytest.raises(TypeError, match=r"dicts of columns, but got a int, at row 0 of 0.arrow"):
        me.read(folder).map(lambda row: row["id"]).cache(tmp_path / "cache")


def test_an_error_of_a_function_names_the_row_and_leaves_no_half_file(folder, tmp_path):
    def fails(row):
        return {"x": 1 / (row["id"] - 33)}

    with pytest.raises(ZeroDivisionError) as caught:
        me.read(folder).map(fails).cache(tmp_path / "cache")
    assert caught.value.__notes__[0].endswith("fails), at row 13 of 1.arrow")
    assert [path.name for path in (tmp_path / "cache").glob(".*")] == [".lock"]
    assert len(list((tmp_path / "cache").glob("*.arrow"))) == 6


def test_no_row_at_all(folder, tmp_path):
    with pytest.raises(me.NoDataError, match="no row passes the stages"):
        me.read(folder).map(tokenise).filter(lambda row: False).cache(tmp_path / "cache")


def test_batches_that_do_not_fit_into_a_column_are_divided(folder, tmp_path, monkeypatch):
    def small(column):
        if len(column) > 2:
            raise pa.ArrowCapacityError("too large")
        return original(column)

    dataset = me.read(folder).map(tokenise)
    original = module.to_arrow
    monkeypatch.setattr(module, "to_arrow", small)
    assert list(dataset.cache(tmp_path / "cache")) == list(dataset)


def test_files_that_cannot_be_seen_here_are_named(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "run_units", lambda *arguments, **options: None)
    with pytest.raises(me.NoDataError, match=r"cannot be seen here. Pass a folder that all machines"):
        me.read(folder).map(tokenise).cache(tmp_path / "cache")
