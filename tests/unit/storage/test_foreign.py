import gzip

import pytest

import midepoch as me
from midepoch.storage.foreign import foreign_layout


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["index.json", "shard.00000.mds"], r"MosaicML Streaming .*from_indexable\(streaming\.StreamingDataset"),
        (["a/index.json", "a/shard.00000.mds.zstd"], "MosaicML Streaming"),
        (["index.json", "chunk-0-0.bin", "chunk-0-1.bin"], r"LitData.*from_indexable\(litdata\.StreamingDataset"),
        (["index.json", "chunk-0-0.zstd.bin"], "LitData"),
        (["000.tar", "001.tar"], "tar files, as WebDataset writes them.*Parquet.*from_indexable"),
        (["000.tar", "shards.json"], "tar files, as WebDataset writes them"),
        (["cat/0.jpg", "dog/1.JPEG"], r"has images.*from_indexable\(torchvision\.datasets\.ImageFolder.*coming-from"),
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
        ("0.tar", b"0.cls\0\0", "tar files.*Parquet.*from_indexable.*coming-from"),
        ("0.tar.gz", gzip.compress(b"0.cls\0\0", mtime=0), "tar files.*from_indexable"),
        ("0.tgz", gzip.compress(b"0.cls\0\0", mtime=0), "tar files.*from_indexable"),
        ("a.jpg", b"\xff\xd8\xff\xe0\0\x10JFIF", "images.*from_indexable.*Parquet.*coming-from"),
        ("a.PNG", b"\x89PNG\r\n\x1a\n", "images.*from_indexable"),
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


def test_other_folders_are_not_recognised():
    assert foreign_layout(["index.json", "a.json"]) is None
    assert foreign_layout(["chunk-0-0.bin"]) is None
    assert foreign_layout([]) is None


def test_files_that_are_read_are_read_beside_others(tmp_path):
    (tmp_path / "a.csv").write_text("id\n1\n")
    for name in ("index.json", "shard.mds", "b.tar"):
        (tmp_path / name).write_text("{}")
    assert list(me.read(tmp_path)) == [{"id": 1}]
