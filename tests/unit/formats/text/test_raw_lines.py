"""JSON lines as text: lines whose fields have different types."""

import gzip

import pytest

import midepoch as me


def test_lines_as_text_take_fields_of_any_type(tmp_path):
    lines = ['{"a": "x"}', '{"a": ["y", 1]}', "", "  ", '{"b": ', '{"a": "é"}\r']
    (tmp_path / "a.jsonl").write_text("\n".join(lines), encoding="utf-8", newline="")
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"a": 1}\n'))
    dataset = me.read(tmp_path, format="lines")
    assert [row["line"] for row in dataset] == ['{"a": "x"}', '{"a": ["y", 1]}', '{"b":', '{"a": "é"}', '{"a": 1}']
    me.testing.assert_resumes(dataset.shuffle(1))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", b'[{"a": 1}]', "a.json is json, but format='lines' was asked for"),
        ("a.csv", b"a\n1\n", "a.csv is csv, but format='lines' was asked for"),
        ("a.jsonl", b'{"a": 1}\n{"a": "\xff"}\n', "a.jsonl, line 2: the byte 0xff is not UTF-8"),
    ],
)
def test_files_that_are_no_json_lines_are_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(me.DataFormatError, match=message):
        me.read(tmp_path / name, format="lines")
