"""Wrong input of every command: the message says what is wrong and what to do, and the exit code is 2."""

import json
import os
import pickle
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import midepoch as me
from midepoch.cli.main import main

PIPELINES = """
def fails(dataset):
    raise RuntimeError("kaput")

def divide(row):
    return {"x": 1 / 0}

def divides(dataset):
    return dataset.map(divide)

def without_argument():
    return None

def shuffled(dataset):
    return dataset.shuffle(seed=7)

def even(row):
    return row["id"] % 2 == 0

def filtered(dataset):
    return dataset.filter(even)

number = 3
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A working directory with data, checkpoints that are damaged in many ways, and a module of pipelines."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for name in ("lines", "broken", "needing", "raising"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    Path("data").mkdir()
    pq.write_table(pa.table({"id": range(50)}), "data/a.parquet")
    pq.write_table(pa.table({"id": range(30)}), "other.parquet")
    state = me.read("data").state_dict()
    Path("good.json").write_text(json.dumps(state))
    Path("cut.json").write_text(json.dumps(state)[:50])
    Path("bytes.json").write_bytes(b'{"a": "\xff"}')
    Path("deep.json").write_text("[" * 100_000)
    Path("empty.json").write_text("")
    without_checksum = {name: value for name, value in state.items() if name != "checksum"}
    for name, fingerprint in {
        "number": 3,
        "steps": {"data": state["fingerprint"]["data"], "pipeline": [{"x": 1}]},
        "shuffle": {"data": state["fingerprint"]["data"], "pipeline": [{"op": "shuffle"}]},
        "take": {"data": state["fingerprint"]["data"], "pipeline": [{"op": "take", "n": "x"}]},
        "files": {"data": {"files": "x", "rows": 1}, "pipeline": []},
        "parts": {"data": {"parts": [3]}, "pipeline": []},
    }.items():
        Path(f"{name}.json").write_text(json.dumps({**without_checksum, "fingerprint": fingerprint}))
    Path("folder/.metadata").mkdir(parents=True)
    Path("dict").mkdir()
    Path("dict/.metadata").write_bytes(pickle.dumps({"a": 1}))
    Path("system.pt").write_bytes(pickle.dumps(os.getcwd))
    Path("lines.py").write_text(PIPELINES)
    Path("broken.py").write_text("def x(:\n")
    Path("needing.py").write_text("import nowhere_to_be_found\n")
    Path("raising.py").write_text("raise RuntimeError('kaput')\n")
    return tmp_path


def run(line, capsys):
    try:
        code = main(shlex.split(line))
    except SystemExit as error:  # of argparse
        code = error.code
    printed = capsys.readouterr()
    return code, printed.out, printed.err


CHECKPOINTS = [
    ("absent.json", "absent.json cannot be used: No such file or directory. Check the path"),
    ("folder", ".metadata cannot be used: Is a directory"),
    ("dict", "dict/.metadata cannot be read"),
    ("s3://bucket/state.json", "is a URL, and checkpoints are read from local files. Download it first"),
    ("https://me:hush@host/x", "midepoch {}: A https:// URL holds credentials, and URLs appear in messages"),
    ("empty.json", "is empty: it was never written to its end. Use an earlier checkpoint"),
    ("cut.json", "cut.json begins like JSON and is not valid JSON ("),
    ("bytes.json", "bytes.json begins like JSON and is not valid JSON ("),
    ("deep.json", "deep.json begins like JSON and is not valid JSON ("),
    ("lines.py", "neither JSON nor a complete file of torch.save"),
    ("system.pt", "holds objects that only code of the checkpoint can make. Save the state alone"),
    *((f"{name}.json", "The state is damaged") for name in ("number", "steps", "shuffle", "take", "files", "parts")),
]


@pytest.mark.parametrize(("checkpoint", "message"), CHECKPOINTS)
@pytest.mark.parametrize("line", ["inspect {}", "trace 0 --data data --checkpoint {}"])
def test_a_checkpoint_that_cannot_be_read_is_named_with_a_remedy(home, capsys, line, checkpoint, message):
    code, out, err = run(line.format(checkpoint), capsys)
    assert (code, out) == (2, "")
    assert message.format(line.split()[0]) in err
    assert "hush" not in err
    assert "Errno" not in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("index --clean -1", "argument --clean: -1 is too small; it must be at least 0"),
        ("index data --clean 3", "Leave the paths out"),
        ("head data -n many", "argument -n: invalid integer value: 'many'"),
        ("verify data --rows 0", "argument --rows: 0 is too small; it must be at least 1"),
        ("inspect good.json --pipeline lines:shuffled", "pass --data as well"),
        ("trace 0 --data data --checkpoint good.json --batch-size 3", "--batch-size is for a run without a checkpoint"),
        ("find a.parquet 0 --data data --checkpoint good.json --shuffle 3", "--shuffle is for a run without"),
        ("trace 0 --data other.parquet --checkpoint good.json", "other.parquet"),
        ("trace 0 --data data --checkpoint good.json --pipeline lines:shuffled", "not the one of the checkpoint"),
        ("cache data --folder /proc/nowhere", "/proc/nowhere cannot be used: No such file or directory"),
        ("survey data --pipeline lines:filtered --folder /proc/nowhere", "The survey cannot be written to"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_with_a_remedy(home, capsys, line, message):
    code, out, err = run(line, capsys)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("pipeline", "lines"),
    [
        ("lines:fails", ["RuntimeError: kaput", "in lines:fails, which gets", "at line 3 of .*lines.py"]),
        ("lines:divides", ["ZeroDivisionError: ", r"in map\(divide\), at row 0 of a.parquet", "at line 6 of .*lines"]),
        ("lines:without_argument", ["TypeError: ", "in lines:without_argument"]),
        ("lines:number", ["--pipeline lines:number: number is no function of .*lines.py"]),
        ("lines:absent", ["--pipeline lines:absent: absent is no function of .*lines.py"]),
        ("nowhere:f", ["No module named 'nowhere'. Install it, or start the command in the folder"]),
        ("needing:f", ["needing:f: No module named 'nowhere_to_be_found'. Install it"]),
        ("broken:f", ["SyntaxError: ", "while broken was imported"]),
        ("raising:f", ["RuntimeError: kaput", "while raising was imported", "at line 1 of .*raising.py"]),
        ("..:f", ["write it as module:function"]),
    ],
)
def test_an_error_of_the_users_code_names_the_stage_the_row_and_the_line(home, capsys, pipeline, lines):
    code, out, err = run(f"head data --pipeline {pipeline}", capsys)
    assert (code, out) == (2, "")
    said = err.splitlines()
    assert len(said) == len(lines)
    for line, expected in zip(said, lines, strict=True):
        assert re.search(expected, line), line


def test_an_interrupted_command_says_so(home, capsys, monkeypatch):
    def interrupted(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("midepoch.cli.prepare.head", interrupted)
    code, _, err = run("head data", capsys)
    assert (code, err) == (130, "midepoch head: interrupted. What was finished is kept.\n")


def test_a_mistake_of_midepoch_keeps_its_traceback(home, monkeypatch):
    def mistaken(arguments):
        raise AssertionError("impossible")

    monkeypatch.setattr("midepoch.cli.prepare.head", mistaken)
    with pytest.raises(AssertionError, match="impossible"):
        main(["head", "data"])


def test_nobody_complains_when_the_reader_of_a_pipe_has_left(home):
    line = f"{shlex.quote(sys.executable)} -m midepoch head data -n 50 | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
