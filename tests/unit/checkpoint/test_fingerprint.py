import json

import pytest

import midepoch as me
from files import write_numbers
from midepoch.checkpoint.fingerprint import data_difference, data_fingerprint, pipeline_difference


def files(count):
    return [(f"part-{number:05d}.parquet", 1000 + 7 * number, 100 + number % 3) for number in range(count)]


def difference_of(then, now):
    return data_difference(json.loads(json.dumps(data_fingerprint(then))), now, data_fingerprint(now))


few_and_many = pytest.mark.parametrize("count", [3, 500])
numbers = pytest.mark.parametrize("number", [0, 1, -1])


@few_and_many
def test_the_same_files_do_not_differ(count):
    assert difference_of(files(count), files(count)) is None


@few_and_many
@numbers
def test_a_file_with_other_rows_is_named_with_both_counts(count, number):
    now = files(count)
    name, size, rows = now[number]
    now[number] = (name, size + 40, rows + 5)
    difference = difference_of(files(count), now)
    assert f"{name} has {rows + 5:,} rows; the checkpoint was taken when it had {rows:,}." in difference


@few_and_many
@numbers
def test_a_file_with_other_bytes_is_named_with_both_sizes(count, number):
    now = files(count)
    name, size, rows = now[number]
    now[number] = (name, size - 3, rows)
    difference = difference_of(files(count), now)
    assert f"{name} has {size - 3:,} bytes; the checkpoint was taken when it had {size:,}." in difference


@few_and_many
@numbers
def test_a_new_file_is_named(count, number):
    now = files(count)
    then = [file for file in now if file != now[number]]
    difference = difference_of(then, now)
    assert f"{now[number][0]} is new." in difference
    assert f"the dataset is now {count} files" in difference


@few_and_many
@pytest.mark.parametrize("number", [0, 1, -2])
def test_a_missing_file_is_named(count, number):
    then = files(count)
    now = [file for file in then if file != then[number]]
    difference = difference_of(then, now)
    assert then[number][0] in difference
    assert "is missing" in difference
    assert f"on {count} files" in difference


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


def test_several_changed_files_of_few_are_all_named():
    now = files(3)
    now[0] = (now[0][0], 5, 5)
    now[2] = (now[2][0], 6, 6)
    difference = difference_of(files(3), now)
    assert now[0][0] in difference
    assert now[2][0] in difference
    assert now[1][0] not in difference


def test_several_changed_files_of_many_are_reported_as_several():
    now = files(500)
    for number in (3, 4):
        now[number] = (now[number][0], now[number][1] + 1, now[number][2] + 1)
    assert difference_of(files(500), now).startswith("Several files have other rows or bytes than then")


def test_changes_that_cancel_out_in_the_sums_are_still_noticed():
    now = files(500)
    now[3] = (now[3][0], now[3][1] + 1, now[3][2] + 1)
    now[4] = (now[4][0], now[4][1] - 1, now[4][2] - 1)
    assert difference_of(files(500), now).startswith("Several files have other rows or bytes than then")


@pytest.mark.parametrize(
    "now",
    [
        [(f"x{name}", *facts) for name, *facts in files(500)],
        [("renamed.parquet", 1000, 100), *files(500)[1:]],
        files(502),
        files(1),
        [*files(499)[1:], ("one.parquet", 1, 1), ("two.parquet", 2, 2), ("three.parquet", 3, 3)],
    ],
    ids=["all renamed", "one renamed", "two new", "499 missing", "one missing and three new"],
)
def test_other_differences_between_many_files_report_both_counts(now):
    difference = difference_of(files(500), now)
    rows = sum(rows for _, _, rows in now)
    assert difference.startswith("Several files have other names than then, are new or are missing.")
    assert "The checkpoint was taken on 500 files with 50,499 rows;" in difference
    assert f"the dataset is now {len(now)} file{'s' * (len(now) > 1)} with {rows:,} rows." in difference


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


@pytest.mark.parametrize("count", [3, 60])
def test_load_state_dict_names_the_file_that_changed(tmp_path, count):
    for number in range(count):
        write_numbers(tmp_path / f"part-{number:05d}.arrow", 3 * number, 3 * number + 3)
    state = me.read(tmp_path).state_dict()
    write_numbers(tmp_path / "part-00001.arrow", 0, 9)
    with pytest.raises(me.CheckpointMismatchError, match=r"part-00001\.arrow has 9 rows; .* when it had 3\."):
        me.read(tmp_path).load_state_dict(state)


def test_the_state_does_not_grow_with_files_or_rows(tmp_path):
    sizes = []
    for count in (3, 60):
        for number in range(count):
            write_numbers(tmp_path / f"part-{number:05d}.arrow", 0, count)
        dataset = me.read(tmp_path).shuffle(seed=1)
        next(iter(dataset))
        sizes.append(len(json.dumps(dataset.state_dict())))
    assert sizes[1] < sizes[0] + 100
    assert max(sizes) < 1024


SHUFFLE = {"op": "shuffle", "level": "row", "seed": 1}
MAP = {"op": "map", "fn": "tokenize"}


@pytest.mark.parametrize(
    ("then", "now", "message"),
    [
        ([SHUFFLE], [SHUFFLE], None),
        ([], [], None),
        ([SHUFFLE], [SHUFFLE | {"seed": 2}], "seed of stage 1, shuffle, was 1 then and is 2 now"),
        (
            [SHUFFLE, MAP],
            [SHUFFLE, MAP | {"fn": "other"}],
            "fn of stage 2, map, was 'tokenize' then and is 'other' now",
        ),
        ([MAP], [MAP | {"batched": True}], "batched of stage 1, map, was None then and is True now"),
        ([SHUFFLE], [MAP], "stage 1 was shuffle(level='row', seed=1) then and is map(fn='tokenize') now"),
        ([SHUFFLE], [SHUFFLE, MAP], "stage 2, map(fn='tokenize'), was added"),
        ([SHUFFLE, MAP], [SHUFFLE], "stage 2, map(fn='tokenize'), was removed"),
    ],
)
def test_the_first_difference_of_two_pipelines_is_difference_of(then, now, message):
    assert pipeline_difference(then, now) == message


@pytest.mark.parametrize("damaged", [None, 3, "text", [3], {"op": "map"}])
def test_a_damaged_description_of_a_pipeline_is_reported(damaged):
    assert "damaged" in pipeline_difference(damaged, [MAP])


@pytest.mark.parametrize("part", ["data", "pipeline"])
@pytest.mark.parametrize("damaged", [None, 3, "text", [3], {}])
def test_a_state_with_a_damaged_fingerprint_is_refused_and_nothing_changes(tmp_path, part, damaged):
    dataset = me.read(write_numbers(tmp_path / "a.arrow", 0, 5))
    state = json.loads(json.dumps(dataset.state_dict()))
    del state["checksum"]
    state["fingerprint"][part] = damaged
    with pytest.raises(me.CheckpointMismatchError, match="damaged"):
        dataset.load_state_dict(state)
    assert len(list(dataset)) == 5


def test_a_parameter_that_a_state_does_not_have_is_none():
    assert pipeline_difference([{"op": "pack"}], [{"op": "pack", "eos": None}]) is None
    difference = pipeline_difference([{"op": "pack"}, {"op": "a"}], [{"op": "pack", "eos": None}, {"op": "b"}])
    assert difference == "stage 2 was a() then and is b() now"
