"""Flat files of tokens, arrays of NumPy, and Megatron pairs, whole and damaged."""

import struct
from itertools import chain

import numpy as np
import pytest

import midepoch as me
from midepoch.index import tokens as module


def write_flat(path, count, dtype="uint16"):
    np.arange(count, dtype=dtype).tofile(path)
    return path


def write_pair(folder, documents, dtype="uint16", code=8, name="text_document"):
    """A Megatron pair. A document is a list of lengths of its sequences; tokens count through the file."""
    lengths = [length for document in documents for length in document]
    item = np.dtype(dtype).itemsize
    pointers = np.concatenate([[0], np.cumsum(lengths)])[:-1] * item
    firsts = np.concatenate([[0], np.cumsum([len(document) for document in documents])])
    write_flat(folder / f"{name}.bin", sum(lengths), dtype)
    header = module.MAGIC + struct.pack("<QBQQ", 1, code, len(lengths), len(firsts))
    arrays = (np.array(lengths, "<i4"), pointers.astype("<i8"), firsts.astype("<i8"))
    (folder / f"{name}.idx").write_bytes(header + b"".join(array.tobytes() for array in arrays))
    return folder / f"{name}.bin"


def rows(dataset):
    return [row["input_ids"] for row in dataset]


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint16", "int32", "uint32", "int64"])
def test_windows(tmp_path, dtype):
    path = write_flat(tmp_path / "train.bin", 103, dtype)
    expected = [list(range(at, at + 10)) for at in range(0, 100, 10)]
    assert rows(me.tokens(path, dtype=dtype, length=10)) == expected
    batch = next(iter(me.tokens(path, dtype=dtype, length=10).with_format("torch").batch(4)))
    assert str(batch["input_ids"].dtype) == "torch.int64"
    assert batch["input_ids"].shape == (4, 10)


@pytest.mark.parametrize("block", [1, 12, 1000])
@pytest.mark.parametrize(("length", "stride"), [(10, 10), (10, 3), (10, 25), (7, 1), (103, 1)])
def test_strides(tmp_path, length, stride, block, monkeypatch):
    monkeypatch.setattr(module, "BLOCK_TOKENS", block)
    path = write_flat(tmp_path / "train.bin", 103)
    dataset = me.tokens(path, dtype="uint16", length=length, stride=stride)
    expected = [list(range(at, at + length)) for at in range(0, 103 - length + 1, stride)]
    assert rows(dataset) == expected
    assert len(dataset) == len(expected)
    for level in ("block", "row"):
        assert sorted(rows(dataset.shuffle(seed=3, level=level))) == expected


def test_several_files_and_arrays_of_numpy(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(25, dtype="int32"))
    np.save(tmp_path / "b.npy", np.arange(100, 131, dtype="uint16"))
    dataset = me.tokens(tmp_path, length=10, column="tokens")
    assert [row["tokens"][0] for row in dataset] == [0, 10, 100, 110, 120]
    assert dataset.column_names == ["tokens"]


def test_resumes_and_resizes(tmp_path):
    path = write_flat(tmp_path / "train.bin", 403)
    dataset = me.tokens(path, dtype="uint16", length=10, stride=5).shuffle(seed=3)
    me.testing.assert_resumes(dataset.batch(4), every=3)
    me.testing.assert_elastic(dataset.batch(4).lanes(4), [(2, 1), (1, 2), (3, 1)])
    state = dataset.state_dict()
    for other in ({"length": 10, "stride": 6}, {"length": 11, "stride": 5}):
        with pytest.raises(me.CheckpointMismatchError):
            me.tokens(path, dtype="uint16", **other).shuffle(seed=3).load_state_dict(state)
    loader = me.Loader(dataset, batch_size=20, num_workers=2)
    assert sorted(row[0] for batch in loader for row in batch["input_ids"]) == list(range(0, 395, 5))


DOCUMENTS = [[5], [3, 4], [1], [], [9, 2, 2], [6]] * 4
LENGTHS = [sum(document) for document in DOCUMENTS if document]


def test_documents_of_a_megatron_pair(tmp_path):
    path = write_pair(tmp_path, DOCUMENTS)
    documents = rows(me.tokens(path))
    assert [len(document) for document in documents] == LENGTHS
    assert list(chain.from_iterable(documents)) == list(range(sum(LENGTHS)))
    windows = me.tokens(path, length=8)
    assert list(chain.from_iterable(rows(windows))) == list(range(sum(LENGTHS) // 8 * 8))
    shuffled = me.tokens(path).shuffle(seed=2, level="row")
    assert sorted(rows(shuffled)) == documents
    assert rows(me.tokens(write_pair(tmp_path, DOCUMENTS, "int32", 4, "other"))) == documents


def test_a_file_that_changed(tmp_path):
    path = write_flat(tmp_path / "train.bin", 100)
    dataset = me.tokens(path, dtype="uint16", length=10)
    write_flat(path, 120)
    with pytest.raises(me.DataChangedError, match=r"train.bin was changed"):
        list(dataset)


def test_what_is_refused(tmp_path):
    flat = write_flat(tmp_path / "train.bin", 100)
    with pytest.raises(ValueError, match='pass dtype="uint16"'):
        me.tokens(flat, length=10)
    with pytest.raises(ValueError, match=r"no .idx file beside it that says where documents begin: pass length"):
        me.tokens(flat, dtype="uint16")
    with pytest.raises(ValueError, match="stride is for windows"):
        me.tokens(flat, dtype="uint16", stride=3)
    with pytest.raises(ValueError, match="dtype is 'float32'; it can be"):
        me.tokens(flat, dtype="float32", length=3)
    with pytest.raises(ValueError, match="length is 0"):
        me.tokens(flat, dtype="uint16", length=0)
    with pytest.raises(ValueError, match="must be on this machine"):
        me.tokens("memory://bucket/train.bin", dtype="uint16", length=3)
    with pytest.raises(me.NoDataError, match="does not exist"):
        me.tokens(tmp_path / "nothing.bin", dtype="uint16", length=3)
    (tmp_path / "odd.bin").write_bytes(b"123")
    with pytest.raises(me.DataFormatError, match=r"odd.bin has 3 bytes of tokens, which uint16 does not divide"):
        me.tokens(tmp_path / "odd.bin", dtype="uint16", length=1)
    np.save(tmp_path / "floats.npy", np.ones(4))
    with pytest.raises(me.DataFormatError, match=r"shape \(4,\) and type float64; tokens are one row of integers"):
        me.tokens(tmp_path / "floats.npy", length=2)
    (tmp_path / "text.npy").write_bytes(b"hello")
    with pytest.raises(me.DataFormatError, match=r"text.npy is not an array of NumPy"):
        me.tokens(tmp_path / "text.npy", length=2)


def damaged(content, at, new):
    return content[:at] + new + content[at + len(new) :]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content[:20], "truncated or damaged"),
        (lambda content: content[:-9], "truncated or damaged"),
        (lambda content: b"x" + content[1:], "not the index of a Megatron dataset"),
        (lambda content: damaged(content, 17, b"\x07"), "type number 7"),
        (lambda content: damaged(content, 34, struct.pack("<i", 10_000)), "does not fit"),
        (lambda content: damaged(content, 34, struct.pack("<i", -1)), "does not fit"),
        (lambda content: damaged(content, 18, struct.pack("<q", 1 << 40)), "truncated or damaged"),
        (lambda content: damaged(content, len(content) - 8, struct.pack("<q", 99)), "does not fit"),
        (lambda content: b"", "not the index of a Megatron dataset"),
    ],
)
def test_damaged_pairs(tmp_path, damage, message):
    path = write_pair(tmp_path, [[5], [3, 4]])
    index = path.with_suffix(".idx")
    index.write_bytes(damage(index.read_bytes()))
    with pytest.raises(me.DataFormatError, match=message):
        me.tokens(path)


def test_files_shorter_than_a_row_raise_with_what_to_pass(tmp_path):
    path = tmp_path / "short.bin"
    np.arange(5, dtype=np.uint16).tofile(path)
    with pytest.raises(me.NoDataError, match=r"short\.bin has 5 tokens, and a row needs 6\. Pass a smaller length, or"):
        me.tokens(path, dtype="uint16", length=6)
    assert len(me.tokens(path, dtype="uint16", length=5)) == 1
