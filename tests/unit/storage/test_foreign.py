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
        (["000.tar", "001.tar"], "tar files, as WebDataset writes them"),
    ],
)
def test_folders_of_other_libraries(tmp_path, names, message):
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('{"version": 2}')
    with pytest.raises(me.NoDataError, match=message):
        me.read(tmp_path)


def test_other_folders_are_not_recognised():
    assert foreign_layout(["index.json", "a.json"]) is None
    assert foreign_layout(["chunk-0-0.bin"]) is None
    assert foreign_layout([]) is None


def test_files_that_are_read_are_read_beside_others(tmp_path):
    (tmp_path / "a.csv").write_text("id\n1\n")
    for name in ("index.json", "shard.mds", "b.tar"):
        (tmp_path / name).write_text("{}")
    assert list(me.read(tmp_path)) == [{"id": 1}]
