"""Options, and a folder of files for each source."""

import json

import pytest
from PIL import Image

import midepoch as me
from midepoch.testing import assert_elastic, assert_resumes

SOURCES = ("red", "green", "blue")
ROWS = 6


def first_pixel(sample):
    return {"id": sample["id"], "input_ids": list(sample["images"][0].getpixel((0, 0)))}


@pytest.fixture
def folders(tmp_path):
    """Files of chats that name 0.png to 5.png. The pictures of each source have a colour of their own."""
    chosen = {}
    for number, source in enumerate(SOURCES):
        folder = tmp_path / "pictures" / source
        folder.mkdir(parents=True)
        for row in range(ROWS):
            Image.new("RGB", (2, 2), tuple(10 * row + 9 if part == number else 0 for part in range(3))).save(
                folder / f"{row}.png"
            )
        rows = [
            {"id": 100 * number + row, "messages": [{"role": "user", "content": "what?"}], "images": [f"{row}.png"]}
            for row in range(ROWS)
        ]
        file = tmp_path / "chats" / source / "rows.jsonl"
        file.parent.mkdir(parents=True)
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        chosen[str(file.parent if number else file)] = folder
    return chosen


def build(folders, source=None, **options):
    source = list(folders) if source is None else source
    return me.MultiModalIterableDataset(source, processor=first_pixel, data_folder=folders, **options)


def test_rows_of_each_source_name_files_in_its_folder(folders):
    for options in ({"shuffle": False}, {"shuffle_seed": 5}):
        items = list(build(folders, **options))
        assert sorted(item["id"] for item in items) == [100 * part + row for part in range(3) for row in range(ROWS)]
        for item in items:
            source, row = divmod(item["id"], 100)
            assert item["input_ids"] == [10 * row + 9 if part == source else 0 for part in range(3)]


def test_it_resumes_anywhere_and_folders_may_move(folders, tmp_path):
    assert_resumes(build(folders).lanes(3))
    assert_elastic(build(folders).lanes(4), [(2, 1), (1, 3), (3, 1)])
    first = build(folders, shuffle=False)
    items = iter(first)
    got = [next(items)["id"] for _ in range(8)]
    (tmp_path / "pictures").rename(tmp_path / "moved")
    moved = {source: tmp_path / "moved" / folder.name for source, folder in folders.items()}
    second = build(moved, shuffle=False)
    second.load_state_dict(first.state_dict())
    assert got + [item["id"] for item in second] == [item["id"] for item in build(moved, shuffle=False)]


def test_a_source_without_a_folder_raises(folders):
    source = list(folders)
    folders.popitem()
    with pytest.raises(ValueError, match=r"data_folder has no folder for '.*blue.*rows\.jsonl'"):
        build(folders, source=source)
    with pytest.raises(me.NoDataError):
        build({**folders, "other": "x"})


def test_an_open_dataset_may_have_folders_too(folders):
    opened = build(folders, source=me.read(list(folders)), shuffle=False)
    assert list(opened) == list(build(folders, shuffle=False))


def test_a_source_without_files_needs_no_folder(folders):
    first, *_ = folders
    with pytest.raises(me.NotAllowedError, match="none was given"):
        list(build({**folders, first: None}, shuffle=False))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"max_skipped": 3}, "max_skipped is 3, but nothing is skipped"),
        ({"max_skipped": -1, "on_error": "skip"}, "max_skipped"),
        ({"processor": "tokenize"}, "processor must be a function of a sample, got 'tokenize'"),
        ({"shuffle_seed": 1, "data_seed": 2}, r"shuffle_seed is 1 and data_seed is 2\. Pass one of them"),
        ({"data_seed": 1.5}, "shuffle_seed must be an integer"),
        ({"trust_shared": "no"}, "trust_shared must be True or False, got 'no'"),
    ],
)
def test_a_wrong_option_raises_before_anything_is_opened(options, error):
    with pytest.raises((ValueError, TypeError), match=error):
        me.MultiModalIterableDataset("nowhere", **{"processor": dict, **options})
