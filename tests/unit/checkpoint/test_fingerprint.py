import json

import pytest

import midepoch as me
from files import write_numbers
from midepoch.checkpoint.fingerprint import data_difference, data_fingerprint, pipeline_difference


def files(count):
    return [(f"part-{number:05d}.parquet", 1000 + 7 * number, 100 + number % 3) for number in range(count)]


def told(then, now):
    return data_difference(json.loads(json.dumps(data_fingerprint(then))), now, data_fingerprint(now))


few_and_many = pytest.mark.parametrize("count", [3, 500])
numbers = pytest.mark.parametrize("number", [0, 1, -1])


@few_and_many
def test_the_same_files_do_not_differ(count):
    assert told(files(count), files(count)) is None


@few_and_many
@numbers
def test_a_file_with_other_rows_is_named_with_both_counts(count, number):
    now = files(count)
    name, size, rows = now[number]
    now[number] = (name, size + 40, rows + 5)
    difference = told(files(count), now)
    assert f"{name} has {rows + 5:,} rows; the checkpoint was taken when it had {rows:,}." in difference


@few_and_many
@numbers
def test_a_file_with_other_bytes_is_named_with_both_sizes(count, number):
    now = files(count)
    name, size, rows = now[number]
    now[number] = (name, size - 3, rows)
    difference = told(files(count), now)
    assert f"{name} has {size - 3:,} bytes; the checkpoint was taken when it had {size:,}." in difference


@few_and_many
@numbers
def test_a_new_file_is_named(count, number):
    now = files(count)
    then = [file for file in now if file != now[number]]
    difference = told(then, now)
    assert f"{now[number][0]} is new." in difference
    assert f"here are {count} files" in difference


@few_and_many
@pytest.mark.parametrize("number", [0, 1, -2])
def test_a_missing_file_is_named(count, number):
    then = files(count)
    now = [file for file in then if file != then[number]]
    difference = told(then, now)
    assert then[number][0] in difference
    assert "is missing" in difference
    assert f"on {count} files" in difference


@pytest.mark.parametrize("number", [0, 250, 499])
def test_a_missing_file_whose_name_cannot_be_guessed_is_told_by_its_rows_and_bytes(number):
    then = [
        (f"{chr(97 + number % 26)}-{number * 7919}", size, rows) for number, (_, size, rows) in enumerate(files(500))
    ]
    now = [file for file in then if file != then[number]]
    _, size, rows = then[number]
    assert f"A file, with {rows:,} rows in {size:,} bytes, is missing." in told(then, now)


@few_and_many
@numbers
def test_a_renamed_file_is_named_by_both_names(count, number):
    then = files(count)
    now = list(then)
    now[number] = ("renamed.parquet", *then[number][1:])
    difference = told(then, now)
    assert "renamed.parquet is new" in difference
    assert then[number][0] in difference


def test_a_renamed_file_is_found_among_files_of_equal_size():
    then = [(f"part-{number:05d}.parquet", 1000, 100) for number in range(500)]
    now = list(then)
    now[77] = ("other.parquet", 1000, 100)
    assert "other.parquet is new, and part-00077.parquet is missing." in told(then, now)


@few_and_many
def test_files_in_another_order_are_told_as_that(count):
    difference = told(files(count), files(count)[::-1])
    assert "in another order" in difference
    assert "has" not in difference


def test_several_changed_files_of_few_are_all_named():
    now = files(3)
    now[0] = (now[0][0], 5, 5)
    now[2] = (now[2][0], 6, 6)
    difference = told(files(3), now)
    assert now[0][0] in difference
    assert now[2][0] in difference
    assert now[1][0] not in difference


def test_several_changed_files_of_many_are_told_as_several():
    now = files(500)
    for number in (3, 4):
        now[number] = (now[number][0], now[number][1] + 1, now[number][2] + 1)
    assert told(files(500), now).startswith("Several files have other rows or bytes than then")


def test_changes_that_cancel_out_in_the_sums_are_still_noticed():
    now = files(500)
    now[3] = (now[3][0], now[3][1] + 1, now[3][2] + 1)
    now[4] = (now[4][0], now[4][1] - 1, now[4][2] - 1)
    assert told(files(500), now).startswith("Several files have other rows or bytes than then")


def test_several_renamed_files_of_many_are_told_as_that():
    then = files(500)
    now = [(f"x{name}", *facts) for name, *facts in then[:2]] + then[2:]
    assert told(then, now).startswith("Several files have other names than then.")


def test_many_files_more_and_fewer():
    assert "400 more of them" in told(files(500)[:100], [(f"x{name}", *facts) for name, *facts in files(500)])
    assert "499 fewer of them" in told(files(500), files(1))


def test_the_fingerprint_does_not_grow_with_the_files():
    sizes = [len(json.dumps(data_fingerprint(files(count)))) for count in (1, 2, 5, 20, 500, 20_000)]
    assert max(sizes) < 450


@pytest.mark.parametrize("damaged", [{}, None, "text", 3, {"digest": "0"}, {"digest": "0", "files": 3, "rows": 1}])
def test_a_damaged_fingerprint_is_told_as_that(damaged):
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
        ([SHUFFLE], [SHUFFLE, MAP], "stage 2, map(fn='tokenize'), is there now but not then"),
        ([SHUFFLE, MAP], [SHUFFLE], "stage 2, map(fn='tokenize'), is there then but not now"),
    ],
)
def test_the_first_difference_of_two_pipelines_is_told(then, now, message):
    assert pipeline_difference(then, now) == message


@pytest.mark.parametrize("damaged", [None, 3, "text", [3], {"op": "map"}])
def test_a_damaged_description_of_a_pipeline_is_told_as_that(damaged):
    assert "damaged" in pipeline_difference(damaged, [MAP])


@pytest.mark.parametrize("part", ["data", "pipeline"])
@pytest.mark.parametrize("damaged", [None, 3, "text", [3], {}])
def test_a_state_with_a_damaged_fingerprint_is_refused_and_nothing_changes(tmp_path, part, damaged):
    dataset = me.read(write_numbers(tmp_path / "a.arrow", 0, 5))
    state = json.loads(json.dumps(dataset.state_dict()))
    state["fingerprint"][part] = damaged
    with pytest.raises(me.CheckpointMismatchError, match="damaged"):
        dataset.load_state_dict(state)
    assert len(list(dataset)) == 5


def test_a_parameter_that_a_state_does_not_tell_is_none():
    assert pipeline_difference([{"op": "pack"}], [{"op": "pack", "eos": None}]) is None
    told = pipeline_difference([{"op": "pack"}, {"op": "a"}], [{"op": "pack", "eos": None}, {"op": "b"}])
    assert told is not None
    assert told.startswith("stage 2 was a()")
