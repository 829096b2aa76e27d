"""Listing: which files a source names, in which order, and what an error says when there are none."""

import gzip
import os
import re
from pathlib import Path

import pytest

import midepoch as me
from files import values, write_numbers
from midepoch.errors import NoDataError
from objects import find, numbered, put, put_rows
from worlds import ids, write_files


@pytest.fixture
def folder(tmp_path):
    """Two files and two in subfolders, with things around them that are not data."""
    root = tmp_path / "data"
    write_numbers(root / "b.arrow", 10, 13)
    write_numbers(root / "a.parquet", 0, 10, "parquet")
    write_numbers(root / "sub" / "c.arrow", 13, 15)
    write_numbers(root / "sub" / "deep" / "d.arrow", 15, 20)
    for name in (".hidden.arrow", "_temporary.arrow", "_SUCCESS", ".cache/x.arrow", "_delta/x.parquet", "README.md"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(b"not data")
    return root


def test_a_folder_is_read_sorted_with_its_subfolders_without_hidden_and_underscored(folder):
    assert find(folder).names == ("a.parquet", "b.arrow", "sub/c.arrow", "sub/deep/d.arrow")
    assert values(me.read(folder)) == list(range(20))


def test_files_sort_folder_by_folder_not_by_the_slash(tmp_path):
    for name in ("a/x.arrow", "a-b/x.arrow", "a.arrow"):
        write_numbers(tmp_path / name, 0, 1)
    assert find(tmp_path).names == ("a/x.arrow", "a-b/x.arrow", "a.arrow")
    assert find(str(tmp_path / "**/*.arrow")).names == ("a/x.arrow", "a-b/x.arrow", "a.arrow")


def test_a_glob(folder):
    assert find(str(folder / "[!_]*.arrow")).names == ("b.arrow",)
    assert values(me.read(str(folder / "s*" / "*.arrow"))) == [13, 14]
    assert values(me.read(str(folder / "**" / "[a-z].arrow"))) == list(range(10, 20))
    assert values(me.read(folder / "[ab].*")) == list(range(13))
    assert find(str(folder / "?.parquet")).names == ("a.parquet",)


def test_a_star_matches_no_hidden_files_as_in_a_shell(folder):
    found = find(str(folder / "**" / "*"))
    assert not any(part.startswith(".") for name in found.names for part in name.split("/"))
    assert find(str(folder / ".hid*")).names == (".hidden.arrow",)


def test_a_file_whose_name_looks_like_a_glob_is_that_file(tmp_path):
    write_numbers(tmp_path / "a[1].arrow", 0, 3)
    write_numbers(tmp_path / "a1.arrow", 9, 10)
    assert values(me.read(tmp_path / "a[1].arrow")) == [0, 1, 2]


def test_a_list_keeps_its_order(folder):
    sources = [folder / "sub", str(folder / "b.arrow"), folder / "*.parquet"]
    assert values(me.read(sources)) == [*range(13, 20), 10, 11, 12, *range(10)]
    assert find(sources).names == ("sub/c.arrow", "sub/deep/d.arrow", "b.arrow", "a.parquet")


def test_the_tilde_is_the_home_folder(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder.parent))
    assert values(me.read("~/data/b.arrow")) == [10, 11, 12]
    assert values(me.read("~/data/b*.arrow")) == [10, 11, 12]


def test_relative_paths_and_absolute_ones_are_the_same_source(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    assert find("data") == find(folder) == find(f"data{os.sep}") == find(Path("data/../data"))


def test_a_linked_folder_is_read(folder, tmp_path):
    (tmp_path / "link").symlink_to(folder)
    assert values(me.read(tmp_path / "link")) == list(range(20))


def test_a_link_to_a_folder_above_is_not_followed_for_ever(folder):
    (folder / "sub" / "up").symlink_to(folder)
    assert values(me.read(folder)) == list(range(20))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nowhere", r"nowhere does not exist; it was looked for at .*\. Pass a file, a folder or a glob"),
        ("data/*.csv", r"data/\*\.csv matches no file below"),
        ("nowhere/*.arrow", r"matches nothing: the folder .*nowhere does not exist"),
        ("data/README.md/x", "does not exist"),
        ([], "The list of sources is empty"),
        (["data", "nowhere"], "nowhere does not exist"),
    ],
)
def test_nothing_to_read_says_why(folder, monkeypatch, source, message):
    monkeypatch.chdir(folder.parent)
    with pytest.raises(me.NoDataError, match=message):
        me.read(source)


def test_an_empty_folder_says_so(tmp_path):
    with pytest.raises(me.NoDataError, match=r"has no file that ends in \.tar, \.mds, \.arrow.*\(it is empty\)"):
        me.read(tmp_path)


def test_a_folder_of_other_files_names_one_and_says_what_to_do(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(me.NoDataError, match=r"it holds 1 other, such as notes\.txt\).*pass a glob"):
        me.read(tmp_path)


@pytest.mark.parametrize("twice", [["b.arrow", "b.arrow"], [".", "b.arrow"], ["b.arrow", "sub/../b.arrow"]])
def test_a_file_that_is_named_twice_is_refused(folder, twice):
    with pytest.raises(ValueError, match=r"The sources name .*b\.arrow twice"):
        me.read([folder / one for one in twice])


def test_json_beside_other_data_counts_as_metadata(tmp_path, caplog):
    write_numbers(tmp_path / "data-00000.arrow", 0, 5)
    (tmp_path / "state.json").write_text('{"x": 9}')
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "dataset_info.json").write_text('{"features": {}}')
    with caplog.at_level("INFO", "midepoch"):
        assert values(me.read(tmp_path)) == list(range(5))
    assert re.search(r"2 files of .* that end in \.json are not read", caplog.text)
    assert values(me.read([tmp_path / "data-00000.arrow", tmp_path / "state.json"])) == [0, 1, 2, 3, 4, 9]
    (tmp_path / "data-00000.arrow").unlink()
    (tmp_path / "sub" / "dataset_info.json").unlink()
    assert values(me.read(tmp_path)) == [9]


def test_a_file_url_is_a_path(tmp_path):
    write_files(tmp_path / "data", [10, 10])
    assert find(f"file://{tmp_path}/data").store is None
    assert ids(me.read(f"file://{tmp_path}/data")) == list(range(20))


def test_files_lists_and_globs_of_memory():
    url = put_rows()
    put("/data/deep/part-9.parquet", numbered(1000, 1010))
    assert ids(me.read(f"{url}/part-1.parquet")) == list(range(40, 80))
    assert ids(me.read([f"{url}/part-1.parquet", f"{url}/part-0.parquet"])) == [*range(40, 80), *range(40)]
    assert ids(me.read(f"{url}/part-[12].parquet")) == list(range(40, 120))
    assert ids(me.read(f"{url}/**/*.parquet")) == [*range(1000, 1010), *range(120)]
    assert ids(me.read(f"{url}/")) == [*range(1000, 1010), *range(120)]
    listing = find(url)
    assert listing.names[0] == "deep/part-9.parquet"
    assert "memory" not in "".join(listing.names)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("memory://nothing", "memory://nothing does not exist"),
        ("memory://data/*.csv", "memory://data/*.csv matches no object below memory://data"),
        ("memory://other", "has no file that ends in"),
    ],
)
def test_a_url_with_nothing_to_read_says_why(source, message):
    put_rows()
    put("/other/readme.txt", b"text")
    with pytest.raises(NoDataError, match=re.escape(message)):
        me.read(source)


def test_sources_of_two_stores_are_refused(tmp_path):
    with pytest.raises(ValueError, match="different stores or buckets"):
        find(["s3://one/x", "s3://two/x"])
    with pytest.raises(ValueError, match="is a path, and other sources are URLs"):
        find(["memory://x", str(tmp_path)])
    with pytest.raises(ValueError, match="names no bucket"):
        find("s3://")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["index.json", "chunk-0-0.bin", "chunk-0-1.bin"], r"LitData.*from_indexable\(litdata\.StreamingDataset"),
        (["index.json", "chunk-0-0.zstd.bin"], "LitData"),
        (["000.tar.gz", "001.tgz"], "compressed tar files.*Decompress them"),
        (["cat/0.jpg", "dog/1.JPEG"], r"has images.*midepoch\.image_folder\(folder\).*vision\.md"),
    ],
)
def test_folders_of_other_libraries(tmp_path, names, message):
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('{"version": 2}')
    with pytest.raises(me.NoDataError, match=message):
        me.read(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("0.tar.gz", gzip.compress(b"0.cls\0\0", mtime=0), "compressed tar files.*Decompress them"),
        ("0.tar.xz", b"\xfd7zXZ\0\0", "compressed tar files.*unxz"),
        ("a.jpg", b"\xff\xd8\xff\xe0\0\x10JFIF", r"images.*image_folder.*Parquet.*vision\.md"),
        ("a.PNG", b"\x89PNG\r\n\x1a\n", "images.*image_folder"),
        ("model.bin", b"\1\0\0\0", "has no known format"),
    ],
)
def test_files_that_are_not_read_are_not_said_to_be_csv(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    for source in (tmp_path / name, f"{tmp_path}/*"):
        with pytest.raises(me.DataFormatError, match=message) as raised:
            me.read(source)
        assert "format='csv'" not in str(raised.value)


def test_rows_beside_images_are_read(tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"")
    (tmp_path / "chats.json").write_text('[{"image": "a.jpg"}]')
    assert list(me.read(tmp_path)) == [{"image": "a.jpg"}]
