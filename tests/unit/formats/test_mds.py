"""MDS folders: rows equal those of MosaicML's StreamingDataset, and what is wrong with a folder is said."""

import gzip
import json
import logging
import shutil
from pathlib import Path

import numpy as np
import PIL.Image
import pyarrow as pa
import pytest

import midepoch as me
from midepoch.formats import mds
from shards import numbered_mds, shard_of, write_mds
from tars import numbered_tar

GOLDEN = Path(__file__).parents[2] / "golden" / "mds"
"""Folders of all encodings that `mosaicml-streaming` 0.13 wrote, and its rows: write.py there made them."""


def plain(value):
    """As in GOLDEN/write.py."""
    if isinstance(value, PIL.Image.Image):
        return [value.mode, list(value.size), value.tobytes().hex()]
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, list | set):
        return [plain(inner) for inner in value]
    return value.hex() if isinstance(value, bytes) else value if isinstance(value, int | float | None) else str(value)


def without_pixels(value):
    return [without_pixels(one) for one in value] if isinstance(value[0], list) else value[:2]


@pytest.mark.parametrize("compression", ["raw", "zstd", "gz", "br", "snappy", "bz2"])
def test_rows_of_all_encodings_are_those_of_streaming(compression):
    expected = json.loads((GOLDEN / "expected.json").read_text())
    dataset = me.read(GOLDEN / compression)
    rows = [plain(row) for row in dataset.decode(allow_pickle=True)]
    for row in [*rows, *expected]:
        for name in ("jpeg", "jpeg_array", "jpegarray", "list[jpeg]"):
            row[name] = without_pixels(row[name])
    assert rows == expected
    assert dataset.schema.field("tokens").type == pa.list_(pa.int64())
    assert dataset.schema.field("axes").type == pa.list_(pa.list_(pa.uint16()))
    assert dataset.schema.field("float16").type == pa.float16()
    assert [plain(row["str_int"]) for row in dataset] == [str(row["str_int"]) for row in expected]  # not decoded
    some = list(me.read(GOLDEN / compression, columns=["str", "int"]))
    assert [[*row] for row in some] == [["str", "int"]] * 5
    assert [row["int"] for row in some] == [row["int"] for row in expected]
    assert len(list(me.read(GOLDEN / compression, columns=[]))) == 5


def test_a_pickled_column_is_refused_by_name_unless_it_is_allowed(tmp_path):
    with pytest.raises(me.NotAllowedError, match=r"the column 'pkl' is pickled.*allow_pickle=True"):
        me.read(GOLDEN / "raw").decode()
    row = next(iter(me.read(GOLDEN / "raw").decode("json", "str_decimal")))
    assert (row["json"], isinstance(row["pkl"], bytes)) == ({"a": [0, None]}, True)
    forged = pa.schema([pa.field("a", pa.list_(pa.binary()))]).with_metadata(
        {"huggingface": json.dumps({"info": {"features": {"a": [{"_type": "Pickle"}]}}})}
    )
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink, pa.ipc.new_stream(sink, forged) as writer:
        writer.write_batch(pa.record_batch([[[b"cos\nsystem\n(S'true'\ntR."]]], schema=forged))
    with pytest.raises(me.NotAllowedError, match="the column 'a' is pickled"):
        me.read(tmp_path / "a.arrow").decode()


def test_the_index_decides_what_is_read_and_in_which_order(tmp_path, caplog):
    folder = numbered_mds(tmp_path / "a", 30)
    index = json.loads((folder / "index.json").read_text())
    index["shards"] = [index["shards"][2], index["shards"][0]]
    (folder / "index.json").write_text(json.dumps(index))
    for source in (folder, folder / "index.json"):
        assert [row["id"] for row in me.read(source)] == [*range(20, 30), *range(10)]
    assert [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING] == [
        f"1 shard is not read, such as {folder}/shard.00001.mds: no index.json names them."
    ]
    (folder / "index.json").unlink()
    assert [row["id"] for row in me.read(folder)] == [*range(30)]
    assert [row["id"] for row in me.read(f"{folder}/shard.{{00001..00002}}.mds")] == [*range(10, 30)]


def test_folders_of_folders_and_both_forms_of_a_shard(tmp_path):
    numbered_mds(tmp_path / "a", 20)
    numbered_mds(tmp_path / "b", 25, first=20)
    assert [row["id"] for row in me.read(tmp_path)] == [*range(25)]
    shards = [json.loads((tmp_path / name / "index.json").read_text())["shards"] for name in "ba"]
    for name, some in zip("ba", shards, strict=True):
        for shard in some:
            shard["raw_data"]["basename"] = f"{name}/{shard['raw_data']['basename']}"
    (tmp_path / "index.json").write_text(json.dumps({"version": 2, "shards": [*shards[0], *shards[1]]}))
    assert [row["id"] for row in me.read(tmp_path)] == [*range(20, 25), *range(20)]
    shutil.copytree(GOLDEN / "zstd", tmp_path / "c")
    for shard in (tmp_path / "c").glob("*.zstd"):
        with pa.input_stream(shard, "zstd") as stream:
            (tmp_path / "c" / shard.stem).write_bytes(stream.read())
    assert len(me.read(tmp_path / "c")) == 5


def test_the_index_of_wids_names_tar_files(tmp_path):
    paths = [numbered_tar(tmp_path / "shards" / f"{number}.tar", 5 * number, 5 * number + 5) for number in range(3)]
    shards = [{"url": f"shards/{path.name}", "nsamples": 5, "filesize": path.stat().st_size} for path in paths[::-1]]
    index = tmp_path / "train.json"
    index.write_text(json.dumps({"__kind__": "wids-shard-index-v1", "wids_version": 1, "shardlist": shards}))
    assert [row["id"] for row in me.read(index)] == [
        str(n).encode() for n in [*range(10, 15), *range(5, 10), *range(5)]
    ]
    paths[1].write_bytes(paths[1].read_bytes()[:-512])
    with pytest.raises(me.DataFormatError, match=r"1\.tar has .* bytes, and .*train\.json says .*: it is cut short"):
        me.read(index)


def changed(folder, change):
    index = json.loads((folder / "index.json").read_text())
    change(index["shards"])
    (folder / "index.json").write_text(json.dumps(index))


def test_what_an_index_names_must_be_there(tmp_path):
    folder = numbered_mds(tmp_path / "a", 30)
    (folder / "shard.00001.mds").rename(tmp_path / "away")
    with pytest.raises(
        me.NoDataError, match=r"index\.json names the shard shard\.00001\.mds, which is not in its folder"
    ):
        me.read(folder)
    content = (tmp_path / "away").read_bytes()
    (folder / "shard.00001.mds").write_bytes(content[:-1])
    with pytest.raises(me.DataFormatError, match=r"shard\.00001\.mds has [\d,]+ bytes, and .*index\.json says"):
        me.read(folder)
    for name in ("../away", "/etc/passwd", "s3://other/shard.mds"):
        (folder / "shard.00001.mds").write_bytes(content)
        changed(folder, lambda shards, name=name: shards[1]["raw_data"].update(basename=name))
        with pytest.raises(me.NotAllowedError, match="is not below its folder"):
            me.read(folder)
    for content in ('{"shards": [{}]}', '{"shards": [{"raw_data": {', "[1]"):
        (folder / "index.json").write_text(content)
        with pytest.raises(me.DataFormatError, match=r"index\.json does not name the shards"):
            me.read(folder)


def test_damaged_shards_are_named(tmp_path):
    whole = (numbered_mds(tmp_path / "a", 30, 30) / "shard.00000.mds").read_bytes()
    path = tmp_path / "b.mds"
    for size in [1, 3, 4, 7, 50, 200, *range(300, len(whole), 97), len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(me.DataFormatError, match=r"b\.mds is no MDS shard, truncated or damaged.*write it again"):
            me.read(path)
    for name, content in {
        "many": b"\xff\xff\xff\x7f" + whole[4:],
        "falling": whole[:8] + whole[4:8] + whole[12:],
        "config": whole.replace(b'"version": 2', b'"version": 3'),
        "format": whole.replace(b'"mds"', b'"csv"'),
        "sizes": whole.replace(b"[8, null", b"[7, null"),
    }.items():
        (tmp_path / f"{name}.mds").write_bytes(content)
        with pytest.raises(me.DataFormatError, match=rf"{name}\.mds is no MDS shard, truncated or damaged"):
            me.read(tmp_path / f"{name}.mds")
    (tmp_path / "c.mds").write_bytes(whole.replace(b'"str"', b'"abc"'))
    with pytest.raises(me.DataFormatError, match=r"c\.mds: the column 'text' has the encoding 'abc', .*does not know"):
        me.read(tmp_path / "c.mds")


def test_values_that_do_not_fit_are_named_when_they_are_read(tmp_path):
    rows = [{"a": [1, 2], "t": "x"}, {"a": [3], "t": "y"}]
    whole = shard_of(rows, {"a": "ndarray:int32", "t": "str"})
    path = tmp_path / "a.mds"
    for content, message in (
        (whole.replace(b"\x04\x01\x03\0\0\0", b"\x08\x01\x03\0\0\0"), "an array of 'a' has the shape"),
        (whole[:-1] + b"\xff", "is no MDS shard, truncated or damaged: .*UTF8"),
        (
            whole[: -len(b"\x04\x01\x03\0\0\0y") - 8] + b"\x07\0\0\0" + whole[-len(b"\x04\x01\x03\0\0\0y") - 4 :],
            "a sample has",
        ),
    ):
        assert content != whole
        path.write_bytes(content)
        with pytest.raises(me.DataFormatError, match=message):
            list(me.read(path))


def test_arrays_of_several_types_in_one_shard(tmp_path):
    def array(code, *axes):
        content = np.arange(np.prod(axes), dtype=mds.CODES[code]).tobytes()
        return bytes([code, len(axes) << 2, *axes]) + content

    def written(*arrays):
        content = shard_of([{"a": one} for one in arrays], {"a": "bytes"})
        at = int.from_bytes(content[4:8], "little")
        head = content[4 * (len(arrays) + 2) : at].replace(b'"bytes"', b'"ndarray"')
        offsets = np.frombuffer(content[4 : 4 * (len(arrays) + 2)], "<u4") + 2
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.mds"
        path.write_bytes(content[:4] + offsets.astype("<u4").tobytes() + head + content[at:])
        return path

    assert [row["a"] for row in me.read(written(array(8, 2), array(8, 3)))] == [[0, 1], [0, 1, 2]]
    assert [row["a"] for row in me.read(written(array(66, 2, 1, 2)))] == [[[[0.0, 1.0]], [[2.0, 3.0]]]]
    for second in (array(9, 2), array(8, 1, 2)):
        with pytest.raises(me.DataFormatError, match="the arrays of 'a' differ in their type or number of axes"):
            list(me.read(written(array(8, 2), second)))
    wider = me.read([written(array(17, 2)), written(array(33, 1))])
    assert [row["a"] for row in wider] == [[0, 1], [0]]
    assert wider.schema.field("a").type == pa.list_(pa.int32())


def test_what_a_shard_says_of_sizes_is_limited(tmp_path):
    folder = write_mds(tmp_path / "a", [{"a": bytes(5000)}], {"a": "bytes"})
    with pytest.raises(me.DataFormatError, match=r"a sample of 5,004 bytes, more than max_record_bytes \(4,096\)"):
        me.read(folder, max_record_bytes="4KiB")
    bomb = (1 << 31).to_bytes(4, "little") + bytes(64 << 20)
    for suffix, codec in (("zstd", "zstd"), ("gz", "gzip"), ("snappy", "snappy")):
        path = tmp_path / f"bomb.mds.{suffix}"
        path.write_bytes(packed(bomb, codec))
        with pytest.raises(me.DataFormatError, match=r"bomb\.mds\.\w+"):
            me.read(path, max_record_bytes="1MiB")


def packed(content, codec):
    """The file of a codec, which says where its content ends."""
    return gzip.compress(content) if codec == "gzip" else pa.compress(content, codec, asbytes=True)


def test_compressed_shards_that_are_cut_short_are_named(tmp_path):
    for path in GOLDEN.glob("*/shard.00000.mds.*"):
        content = path.read_bytes()
        (tmp_path / path.name).write_bytes(content[: len(content) - 20])
        with pytest.raises(me.DataFormatError, match=rf"{path.name} is no MDS shard, truncated or damaged"):
            list(me.read(tmp_path / path.name))
