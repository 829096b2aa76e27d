import json

import pytest

from midepoch.checkpoint.fingerprint import data_difference, data_fingerprint, pipeline_difference


def files(count):
    return [(f"part-{number:05d}.parquet", 1000 + 7 * number, 100 + number % 3) for number in range(count)]


def difference_of(then, now):
    return data_difference(json.loads(json.dumps(data_fingerprint(then))), now, data_fingerprint(now))


few_and_many = pytest.mark.parametrize("count", [3, 500])


@few_and_many
def test_the_same_files_do_not_differ(count):
    assert difference_of(files(count), files(count)) is None


@few_and_many
@pytest.mark.parametrize("number", [0, 1, -2])
@pytest.mark.parametrize(
    ("then", "now", "message"),
    [
        ((100, 7), (105, 9), "{name} has 105 rows; the checkpoint was taken when it had 100."),
        ((100, 7), (100, 9), "{name} has 9 bytes; the checkpoint was taken when it had 7."),
        (None, (100, 7), "{name} is new."),
        ((100, 7), None, "is missing."),
    ],
    ids=["rows", "bytes", "new", "missing"],
)
def test_a_single_file_that_differs_is_named(count, number, then, now, message):
    others = files(count)
    name = others[number][0]
    first, second = (
        [file if file[0] != name else (name, facts[1], facts[0]) for file in others if facts or file[0] != name]
        for facts in (then, now)
    )
    difference = difference_of(first, second)
    assert message.format(name=name) in difference
    assert name in difference
    assert f"on {len(first)} files" in difference
    assert f"the dataset is now {len(second)} files" in difference


@pytest.mark.parametrize("number", [0, 250, 499])
def test_a_missing_file_whose_name_cannot_be_guessed_is_described_by_its_rows_and_bytes(number):
    then = [
        (f"{chr(97 + number % 26)}-{number * 7919}", size, rows) for number, (_, size, rows) in enumerate(files(500))
    ]
    now = [file for file in then if file != then[number]]
    _, size, rows = then[number]
    assert f"A file, with {rows:,} rows in {size:,} bytes, is missing." in difference_of(then, now)


def test_a_renamed_file_of_few_is_named_by_both_names():
    now = files(3)
    now[1] = ("renamed.parquet", *now[1][1:])
    assert "part-00001.parquet is missing. renamed.parquet is new." in difference_of(files(3), now)


@few_and_many
def test_files_in_another_order_are_named_as_that(count):
    difference = difference_of(files(count), files(count)[::-1])
    assert "in another order" in difference
    assert "has" not in difference


@pytest.mark.parametrize("changes", [(1, 1), (1, -1)], ids=["same way", "cancel out"])
def test_several_changed_files_are_named_if_there_are_few(changes):
    for count in (3, 500):
        now = files(count)
        for number, change in zip((0, 2), changes, strict=True):
            name, size, rows = now[number]
            now[number] = (name, size + change, rows + change)
        difference = difference_of(files(count), now)
        if count == 3:
            assert [file[0] in difference for file in now] == [True, False, True]
        else:
            assert difference.startswith("Several files have other rows or bytes than then")


@pytest.mark.parametrize(
    "now",
    [
        [("renamed.parquet", 1000, 100), *files(500)[1:]],
        files(502),
        [*files(499)[1:], ("one.parquet", 1, 1), ("two.parquet", 2, 2), ("three.parquet", 3, 3)],
    ],
    ids=["one renamed", "two new", "one missing and three new"],
)
def test_other_differences_between_many_files_report_both_counts(now):
    difference = difference_of(files(500), now)
    rows = sum(rows for _, _, rows in now)
    assert difference.startswith("Several files have other names than then, are new or are missing.")
    assert "The checkpoint was taken on 500 files with 50,499 rows;" in difference
    assert f"the dataset is now {len(now)} files with {rows:,} rows." in difference


def test_values_of_fingerprints_never_change():
    assert data_fingerprint(files(2), "parquet") == {
        "files": 2,
        "rows": 201,
        "bytes": 2007,
        "digest": "510287e80a6d405f",
        "format": "parquet",
        "list": [["part-00000.parquet", 1000, 100], ["part-00001.parquet", 1007, 101]],
    }
    assert data_fingerprint(files(500)) == {
        "files": 500,
        "rows": 50_499,
        "bytes": 1_373_250,
        "digest": "8f27fcfc2cf27f06",
        "sums": [3029371192398074524, 18320828224982989879, 15924535510347597000],
    }


def test_the_fingerprint_does_not_grow_with_the_files():
    sizes = [len(json.dumps(data_fingerprint(files(count)))) for count in (1, 2, 5, 20, 500, 20_000)]
    assert max(sizes) < 450


@pytest.mark.parametrize("damaged", [{}, None, "text", 3, {"digest": "0"}, {"digest": "0", "files": 3, "rows": 1}])
def test_a_damaged_fingerprint_is_reported(damaged):
    assert "damaged" in data_difference(damaged, files(3), data_fingerprint(files(3)))


MAP = {"op": "map", "fn": "tokenize"}


@pytest.mark.parametrize("damaged", [None, 3, "text", [3], {"op": "map"}])
def test_a_damaged_description_of_a_pipeline_is_reported(damaged):
    assert "damaged" in pipeline_difference(damaged, [MAP])


def test_a_parameter_that_a_state_does_not_have_is_none():
    assert pipeline_difference([{"op": "pack"}], [{"op": "pack", "eos": None}]) is None
    difference = pipeline_difference([{"op": "pack"}, {"op": "a"}], [{"op": "pack", "eos": None}, {"op": "b"}])
    assert difference == "stage 2 was a() then and is b() now"
