"""Tar files: every sample is a row, as in WebDataset, and what is wrong with a file is said."""

import bz2
import gzip
import io
import logging
import lzma
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import midepoch as me
from files import cuts_of, numbers, write
from media import film, picture, shade_of, tone
from midepoch.formats import scan_file, tar
from objects import stored
from tars import numbered_tar, samples_of, without_nulls, write_tar

LONG = "a" * 90 + "/" + "b" * 120 + "/" + "c" * 150
MEMBERS = [
    ("./", b""),
    ("one.jpg", b"first"),
    ("one.CLS", b"1"),
    ("folder/", b""),
    ("folder/two.jpg", b""),
    ("folder/", b""),
    ("folder/two.seg.png", b"x" * 513),
    ("README", b"no sample"),
    ("one.jpg", b"a key that comes back"),
    ("__index__/0.json", b"{}"),
    ("a.b/three.x.y.json", b"{}"),
    (f"{LONG}.jpg", b"a long name"),
    (f"{LONG}.cls", b"2"),
    ("größe.txt", b"text"),
    ("link.jpg -> one.jpg", b""),
    ("last.jpg", bytes(1024)),
]
FORMATS = {"gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


@pytest.mark.parametrize("format", FORMATS)
def test_rows_are_samples(tmp_path, format, caplog):
    path = write_tar(tmp_path / "a.tar", MEMBERS, FORMATS[format])
    dataset = me.read(path)
    assert without_nulls(dataset) == samples_of(path)
    assert len(dataset) == len(samples_of(path)) == 7
    assert dataset.schema.names == ["__key__", "jpg", "cls", "seg.png", "x.y.json", "txt"]
    assert [(one.levelno, one.getMessage()) for one in caplog.records] == [
        (
            logging.WARNING,
            f"{path}: 3 members are in no sample and left out, such as README. Links, names without an extension and "
            "__names__ are.",
        )
    ]


def test_columns_are_those_of_all_files(tmp_path):
    write_tar(tmp_path / "0.tar", [("a.jpg", b"1"), ("a.txt", b"t"), ("b.jpg", b"2")])
    write_tar(tmp_path / "1.tar", [("c.json", b"{}"), ("c.jpg", b"3")])
    dataset = me.read(tmp_path)
    assert dataset.schema.names == ["__key__", "jpg", "txt", "json"]
    assert without_nulls(dataset) == samples_of(tmp_path / "0.tar", tmp_path / "1.tar")
    picked = me.read(tmp_path, columns=["json", "__key__"], filters=pc.field("__key__") > "a")
    assert list(picked) == [{"json": None, "__key__": "b"}, {"json": b"{}", "__key__": "c"}]
    assert len(list(me.read(tmp_path, columns=[]))) == 3
    with pytest.raises(me.SchemaMismatchError, match=r"0\.tar has no column 'png'"):
        me.read(tmp_path, columns=["png"])


def test_beside_other_formats_and_by_any_name(tmp_path):
    write_tar(tmp_path / "ORC.data", [("ORC.x", b"5")])  # the bytes begin with those of an ORC file
    write(tmp_path / "b.arrow", numbers(0, 2))
    assert [row["x"] for row in me.read(tmp_path / "ORC.data")] == [b"5"]
    assert [row["x"] for row in me.read(tmp_path)] == [0, 1]  # by its name, the other is no data
    with pytest.raises(me.SchemaMismatchError, match="'x' is"):
        me.read(f"{tmp_path}/*")


def test_braces_name_files(tmp_path):
    for number in (8, 9, 10, 11):
        numbered_tar(tmp_path / f"s-{number:03}.tar", number, number + 1)
    for source in (f"{tmp_path}/s-{{009..011}}.tar", [f"{tmp_path}/s-{{009,010,011}}.tar"]):
        assert [row["id"] for row in me.read(source)] == [b"9", b"10", b"11"]
    with pytest.raises(me.NoDataError, match=r"s-012\.tar does not exist"):
        me.read(f"{tmp_path}/s-{{010..012}}.tar")


def test_decode_knows_extensions(tmp_path):
    array = np.arange(6).reshape(2, 3)
    saved = io.BytesIO()
    np.save(saved, array)
    content = {
        "jpg": picture(90, "JPEG"),
        "mask.png": picture(50),
        "webp": picture(60, "WEBP"),
        "json": b'{"a": [1, null]}',
        "txt": "größe".encode(),
        "cls": b"7\n",
        "id": b"-12345678901234567890",
        "npy": saved.getvalue(),
        "wav": tone(40),
        "flac": tone(30, kind="FLAC"),
        "mp4": film(tmp_path / "a.mp4", 3).read_bytes(),
        "bin": b"\0\1",
    }
    path = write_tar(tmp_path / "a.tar", [*((f"a.{name}", data) for name, data in content.items()), ("b.bin", b"")])
    row, nothing = me.read(path).decode()
    assert abs(shade_of(row["jpg"]) - 90) < 5
    assert (shade_of(row["mask.png"]), row["webp"].size) == (50, (6, 4))
    assert (row["json"], row["txt"], row["cls"]) == ({"a": [1, None]}, "größe", 7)
    assert (row["id"], row["bin"], row["npy"].tolist()) == (-12345678901234567890, b"\0\1", array.tolist())
    assert (row["wav"]["array"].shape, row["flac"]["array"].shape, row["mp4"].shape) == ((40,), (30,), (3, 16, 32, 3))
    assert without_nulls([nothing]) == [{"__key__": "b", "bin": b""}]
    only = next(iter(me.read(path).decode("json", "cls")))
    assert (only["json"], only["cls"], only["txt"]) == ({"a": [1, None]}, 7, "größe".encode())


def test_decoding_an_array_runs_no_code(tmp_path):
    saved = io.BytesIO()
    np.save(saved, np.array([{}], object), allow_pickle=True)
    with pytest.raises(ValueError, match="allow_pickle"):
        list(me.read(write_tar(tmp_path / "a.tar", [("a.npy", saved.getvalue())])).decode())


def refused(path, match, **options):
    with pytest.raises(me.DataFormatError, match=match) as raised:
        me.read(path, **options)
    assert str(path) in str(raised.value)


def test_a_truncated_file(tmp_path):
    path, cut = numbered_tar(tmp_path / "a.tar", 0, 4), tmp_path / "cut.tar"
    content = path.read_bytes()
    end = len(content.rstrip(b"\0")) // 512 * 512 + 512
    for size in [*cuts_of(end)[::40], end, end + 511]:
        cut.write_bytes(content[:size])
        refused(cut, r"cut\.tar is truncated: it has .* bytes.*write it again")
    cut.write_bytes(content[:end] + bytes(1024))
    assert without_nulls(me.read(cut)) == samples_of(path)


def test_files_that_are_no_tar_or_broken_or_two(tmp_path):
    path = write_tar(tmp_path / "a.tar", [("a.jpg", bytes(500)), ("b.jpg", b"")], tarfile.GNU_FORMAT)
    content = path.read_bytes()
    for number, (data, message) in enumerate(
        [
            (b"no tar at all" * 100, "is no tar file: there is no header"),
            (content[:1030] + b"\1" + content[1031:], "is broken at byte 1,024: there is no header"),
            (content[:1024] + b"b.JPG" + content[1029:], "is broken at byte 1,024"),
            (content + content, "is several tar files in one: more follows the zeros at byte"),
            (gzip.compress(content), "is compressed as a whole.*gunzip"),
            (bz2.compress(content), "is compressed as a whole.*bunzip2"),
            (lzma.compress(content), "is compressed as a whole.*unxz"),
        ]
    ):
        broken = tmp_path / f"{number}.tar"
        broken.write_bytes(data)
        refused(broken, message)
    (tmp_path / "x.tar.gz").write_bytes(gzip.compress(content))
    refused(tmp_path / "x.tar.gz", "is tar, compressed as a whole.*Decompress it")


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([("a.jpg", b""), ("a.JPG", b"")], r"the sample 'a' has 'jpg' twice"),
        ([("a.__key__", b"")], r"has '__key__' twice"),
    ],
)
def test_a_name_that_comes_twice_in_a_sample(tmp_path, members, message):
    refused(write_tar(tmp_path / "a.tar", members), message)


def test_names_that_are_not_utf_8_and_sparse_files(tmp_path):
    refused(write_tar(tmp_path / "a.tar", [("\udcff.jpg", b"")], tarfile.GNU_FORMAT), "name of the member at byte 0")
    with tarfile.open(tmp_path / "b.tar", "w") as file:
        member = tarfile.TarInfo("a.jpg")
        member.pax_headers = {"GNU.sparse.major": "1"}
        file.addfile(member)
    refused(tmp_path / "b.tar", "'a.jpg' is stored as a sparse file")
    with tarfile.open(tmp_path / "c.tar", "w", pax_headers={"path": "b"}) as file:
        file.addfile(tarfile.TarInfo("a.jpg"))
    refused(tmp_path / "c.tar", "gives all members one name")


def with_size(header, size):
    """A header with this field for its size, and its checksum."""
    header = header[:124] + size + header[136:]
    return header[:148] + b"%06o\0 " % (sum(header[:148]) + 8 * 32 + sum(header[156:])) + header[156:]


def test_a_size_that_does_not_fit_the_header_stands_before_it(tmp_path):
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as file:
        member = tarfile.TarInfo("a.jpg")
        member.size, member.pax_headers = 700, {"size": "700"}
        file.addfile(member, io.BytesIO(b"x" * 700))
        file.addfile(tarfile.TarInfo("b.jpg"))
    content = path.read_bytes()
    path.write_bytes(content[:1024] + with_size(content[1024:1536], bytes(12)) + content[1536:])
    assert (
        without_nulls(me.read(path))
        == samples_of(path)
        == [
            {"__key__": "a", "jpg": b"x" * 700},
            {"__key__": "b", "jpg": b""},
        ]
    )


def test_sizes_in_headers_are_not_believed(tmp_path):
    path = write_tar(tmp_path / "a.tar", [("a.jpg", bytes(5000)), ("b.jpg", b"")], tarfile.GNU_FORMAT)
    refused(path, r"the sample 'a' has 5,632 bytes, more than max_record_bytes \(4,096\)", max_record_bytes="4KiB")
    assert len(me.read(path, max_record_bytes="8KiB")) == 2
    for size in (b"77777777777\0", b"\x80" + b"\xff" * 11, b"\xff" * 12, b"not a size\0\0"):
        content = path.read_bytes()
        (tmp_path / "b.tar").write_bytes(with_size(content[:512], size) + content[512:])
        refused(tmp_path / "b.tar", "truncated|no header")


def test_the_index_of_energon_makes_no_difference(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(tar, "LARGE", 1)
    content = numbered_tar(tmp_path / "a.tar", 0, 400, 4000).read_bytes()
    plain, _ = stored(content)
    expected = scan_file(plain)
    with tarfile.open(tmp_path / "a.tar") as file:
        starts = [member.offset for member in file if member.name.endswith(".id")]
    walked = []
    members = tar._members

    def noted(path, read_at, size, begin, end):
        walked.append((begin, end))
        return members(path, read_at, size, begin, end)

    monkeypatch.setattr(tar, "_members", noted)
    pieces = [starts[401 * piece // 4] for piece in (1, 2, 3)]
    wrong = [start + 512 for start in starts]
    for index, walks in (
        ([*starts, len(content) - 1024], [*zip([0, *pieces], [*pieces, None], strict=True)]),
        ([], [(0, None)]),
        ([1 << 60, 3, 7], [(0, None)]),
        (wrong, [(0, None)]),
    ):
        file, _client = stored(content)
        beside, _other = stored(np.array(index, "<u8").tobytes())
        monkeypatch.setattr(file, "beside", lambda suffix, beside=beside: beside)
        walked.clear()
        caplog.clear()
        assert scan_file(file) == expected
        assert set(walks) <= set(walked)
        assert ("is not used, because it is of another file" in caplog.text) == (
            index == wrong or index[:1] == [1 << 60]
        )


def test_an_index_of_energon_that_points_into_a_sample_is_not_used(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(tar, "LARGE", 1)
    inner = numbered_tar(tmp_path / "inner.tar", 0, 3).read_bytes().rstrip(b"\0")
    inner += bytes(-len(inner) % 512)  # without the zeros at its end
    content = write_tar(tmp_path / "a.tar", [("a.tar", inner), ("b.tar", b"")], tarfile.GNU_FORMAT).read_bytes()
    file, _ = stored(content)
    beside, _ = stored(np.array([512], "<u8").tobytes())  # where the inner file begins with a header too
    monkeypatch.setattr(file, "beside", lambda suffix: beside)
    assert [rows for *_, rows in scan_file(file).blocks] == [2]
    assert "is not used, because it is of another file" in caplog.text


def test_an_empty_tar_has_no_rows(tmp_path):
    (tmp_path / "a.tar").write_bytes(bytes(10240))
    numbered_tar(tmp_path / "b.tar", 0, 3)
    assert len(me.read(tmp_path)) == 3
    assert pa.string() == me.read(tmp_path).schema.field("__key__").type
