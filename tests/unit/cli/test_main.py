"""The command line, as a user types it: answers, exit codes, JSON, and the examples of its page."""

import json
import logging
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

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "command-line.md").read_text()
PIPELINES = """
def tokens(dataset):
    return dataset.map(words)


def words(row):
    return {"words": row["text"].split()}


def surveyed(dataset):
    return pipeline(dataset).survey()


def odd(row):
    return row["id"] % 2 == 1


def half(dataset):
    return dataset.filter(odd).survey()


class Changing:
    def __init__(self):
        self.calls = 0

    def __call__(self, row):
        self.calls += 1
        return {"calls": self.calls}


def unreliable(dataset):
    return dataset.map(Changing())


def nothing(dataset):
    return None


def numbers(row):
    return {"tokens": [row["id"]] * (row["id"] % 5 + 1)}


def packs(dataset):
    return dataset.shuffle(seed=3).filter(odd).map(numbers).pack(16, column="tokens", window=8)
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A working directory with data, a module, and checkpoints after 3 and 8 batches of 4."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "train", raising=False)
    Path("data").mkdir()
    for number in range(3):
        rows = range(number * 40, number * 40 + 40)
        table = pa.table({"id": rows, "text": [f"the text of row {row}" for row in rows]})
        pq.write_table(table, f"data/part-{number}.parquet", row_group_size=10)
    [module] = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    Path("train.py").write_text(module + PIPELINES)
    import torch

    loader = me.Loader(me.read("data").shuffle(seed=42).batch(4))
    batches = iter(loader)
    states = [next(batches) and loader.state_dict() for _ in range(8)]
    Path("loader.json").write_text(json.dumps(states[2]))
    torch.save({"model": {"w": torch.zeros(2)}, "extra": [1, {"loader": states[7]}]}, "checkpoint.pt")
    yield tmp_path
    sys.modules.pop("train", None)


def run(line, capsys):
    """The exit code, and what a command prints."""
    code = main(shlex.split(line))
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def value(line, capsys):
    code, out, err = run(f"{line} --json", capsys)
    assert err == ""
    return code, json.loads(out)


@pytest.mark.parametrize("line", re.findall(r"^\$ midepoch (.*)$", PAGE, re.MULTILINE))
def test_an_example_of_the_page_runs(home, capsys, line):
    code, out, err = run(line, capsys)
    assert (code, err) == (0, "")
    assert out.strip()


def test_index_says_what_files_hold(home, capsys):
    code, found = value("index data", capsys)
    assert code == 0
    assert (found["files"], found["rows"], found["blocks"], found["formats"]) == (3, 120, 12, ["parquet"])
    assert found["columns"] == {"id": "int64", "text": "string"}


def test_head_shows_rows_of_any_place_of_the_order(home, capsys):
    expected = list(me.read("data").shuffle(seed=7))
    assert value("head data --shuffle 7 -n 4", capsys) == (0, expected[:4])
    assert value("head data --shuffle 7 -n 4 --at 100", capsys) == (0, expected[100:104])
    _, out, _ = run("head data -n 1", capsys)
    assert out.splitlines() == ["id  text", " 0  the text of row 0"]


def test_inspect_finds_the_state_and_the_next_rows_D2(home, capsys):
    code, [facts] = value("inspect checkpoint.pt --data data", capsys)
    assert code == 0
    assert facts["path"] == "extra.1.loader"
    assert (facts["epoch"], facts["total"], facts["done"], facts["items"]) == (0, 120, 32, 8)
    expected = list(me.read("data").shuffle(seed=42))[32:37]
    assert [40 * int(row["file"][5]) + row["row"] for row in facts["next"]] == [row["id"] for row in expected]
    _, out, _ = run("inspect checkpoint.pt --data data", capsys)
    assert "done        32 of 120 rows (26.7 %)" in out
    assert "pipeline    shuffle(level='block', seed=42, window=8192" in out
    assert "              batch(n=4)" in out
    assert "fits        these files" in out


def test_inspect_compares_with_a_pipeline_of_the_user(home, capsys):
    code, [facts] = value("inspect loader.json --data data --pipeline train:pipeline", capsys)
    assert code == 1
    assert "filter" in facts["difference"]
    dataset = __import__("train").pipeline(me.read("data"))
    items = iter(dataset)
    next(items)
    Path("filtered.json").write_text(json.dumps(dataset.state_dict()))
    code, [facts] = value("inspect filtered.json --data data --pipeline train:pipeline", capsys)
    assert code == 0
    assert "call .survey() once" in facts["why_not_next"]
    code, [facts] = value("inspect filtered.json --data data --pipeline train:surveyed", capsys)
    assert code == 0
    expected = [row["id"] for row in dataset][1:6]
    assert [40 * int(row["file"][5]) + row["row"] for row in facts["next"]] == expected


def test_inspect_opens_a_folder_of_distributed_checkpoints(home, capsys):
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    import torch

    loader = me.Loader(me.read("data").shuffle(seed=42), batch_size=4)
    next(iter(loader))
    with pytest.warns(UserWarning, match="torch.distributed is disabled"):
        dcp.save({"model": {"w": torch.zeros(3)}, "loader": loader}, checkpoint_id="saved")
    code, [facts] = value("inspect saved --data data", capsys)
    assert code == 0
    assert (facts["path"], facts["done"], facts["fits"]) == ("loader", 4, True)


class Evil:
    def __reduce__(self):
        return exec, ("open('ran', 'w')",)


def test_no_code_of_a_checkpoint_is_run(home, capsys):
    import pickle

    import torch

    torch.save({"loader": Evil()}, "evil.pt")
    Path("folder").mkdir()
    Path("folder/.metadata").write_bytes(pickle.dumps(Evil()))
    for name in ("evil.pt", "folder"):
        code, _, err = run(f"inspect {name}", capsys)
        assert code == 2
        assert "cannot be" in err
    assert not Path("ran").exists()


def test_diff_counts_the_rows_between(home, capsys):
    code, found = value("diff loader.json checkpoint.pt", capsys)
    assert (code, found["between"], found["unit"]) == (0, 5, "item")
    code, found = value("diff loader.json checkpoint.pt --data data", capsys)
    assert (code, found["between"], found["unit"]) == (0, 20, "row")
    other = me.read("data").shuffle(seed=43)
    Path("other.json").write_text(json.dumps(other.state_dict()))
    code, out, _ = run("diff loader.json other.json", capsys)
    assert code == 1
    assert "different pipelines" in out


def test_verify_says_what_it_proved_D3(home, capsys):
    code, found = value("verify data --rows 40", capsys)
    assert code == 0
    assert found["items"] == 40
    assert found["failed"] is None
    assert len(found["proved"]) == 5
    assert logging.getLogger("midepoch").level == logging.NOTSET


def test_verify_finds_a_function_that_is_not_the_same_after_a_resume(home, capsys):
    code, found = value("verify data --rows 10 --pipeline train:unreliable", capsys)
    assert code == 1
    assert "differs from the uninterrupted run in 'calls'" in found["failed"]


@pytest.mark.parametrize(("loader", "code", "lost"), [("exact", 0, 0), ("LosesPrefetched", 1, 8)])
def test_verify_judges_any_loader(home, capsys, loader, code, lost):
    line = f"verify --loader judged:{loader} --key id --steps 40 --kill --png picture.png"
    ended, found = value(line, capsys)
    assert ended == code
    assert (found["loader"], found["unit"], found["rows"], found["good"]) == (f"judged:{loader}", "row", 60, not code)
    assert [one["lost"] for one in found["resumes"]][1] == lost
    assert Path("picture.png").exists()


def test_trace_and_find_agree_with_the_run(home, capsys):
    received = [batch["id"] for batch in me.read("data").shuffle(seed=42).batch(4)]
    for step in (2, 7, 20):
        code, lines = value(f"trace {step} --checkpoint checkpoint.pt --data data", capsys)
        assert code == 0
        assert [40 * int(line["file"][5]) + line["row"] for line in lines] == received[step]
        one = lines[2]
        _, found = value(f"find {one['file']} {one['row']} --checkpoint checkpoint.pt --data data", capsys)
        assert found == [one]


def test_a_row_that_no_item_has_is_nowhere(home, capsys):
    code, out, _ = run("find part-0.parquet 39 --data data --pipeline train:surveyed", capsys)
    assert code == 0
    code, out, _ = run("find part-0.parquet 0 --data data --pipeline train:half", capsys)
    assert (code, out.strip()) == (1, "no item of the epoch has this row")
    code, _, error = run("find part-0.parquet 40 --data data", capsys)
    assert code == 2
    assert "part-0.parquet has 40 rows, counted from 0, so there is no row 40 in it" in error


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("trace 2000 --data data", "Epoch 0 has no step 2,000"),
        ("verify data --pipeline train:nothing", "returned NoneType"),
        ("verify", "verify needs files, folders, globs or URLs, or --loader"),
        ("verify data --loader train:make_loader", "and not both"),
        ("verify data --kill", "--key, --kill and --png are for --loader"),
        ("verify --loader nowhere:make_loader", "No module named 'nowhere'. Install it"),
        ("verify --loader train", "write it as module:function, such as train:make_loader"),
        ("verify --loader judged:ROWS", "ROWS is no function of"),
        ("verify --loader judged:no_state", "which has no state_dict"),
        ("inspect data", "Name a file"),
        ("find elsewhere.parquet 1 --data data", "no file is called so"),
        ("inspect train.py", "train.py cannot be opened with weights_only=True"),
    ],
)
def test_a_question_that_has_no_answer_exits_with_2(home, capsys, line, message):
    code, out, err = run(line, capsys)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


def test_the_states_of_several_ranks_are_not_mistaken_for_one(home, capsys):
    states = [json.loads(Path("loader.json").read_text()), me.read("data").state_dict()]
    Path("ranks.json").write_text(json.dumps(states))
    assert len(value("inspect ranks.json", capsys)[1]) == 2
    code, _, err = run("trace 0 --checkpoint ranks.json --data data", capsys)
    assert code == 2
    assert "2 different midepoch states, at 0, 1" in err


def test_no_command_imports_torch_unless_it_opens_a_file_of_torch(home):
    code = """
import sys
from midepoch.cli.main import main
lines = ["index data", "head data", "inspect loader.json --data data", "trace 1 --data data", "verify data --rows 9"]
for line in lines:
    assert main(line.split()) == 0
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    whole = subprocess.run(
        [sys.executable, "-m", "midepoch", "index", "data"], capture_output=True, text=True, check=True
    )
    assert whole.stdout.startswith("120 rows in 3 files")
