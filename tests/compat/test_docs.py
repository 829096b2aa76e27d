"""The README and the docs are true: examples run, links lead somewhere, and what they name or quote is in the code."""

import ast
import os
import random
import re
import runpy
import subprocess
import sys
import tomllib
from functools import cache
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import midepoch

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "midepoch"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
STARTS_PROCESSES = re.compile(r"\.survey\(|\.cache\(|num_workers=[1-9]|[eE]xecutor")
ROW_BYTES = 25_000
"""So that the rows of the examples are several jobs for the processes of a survey or a cache."""
START_METHOD = """
import multiprocessing

multiprocessing.set_start_method("forkserver")
"""
"""As Python 3.14 does by default: each process imports the script, so it must have a guard."""


def blocks():
    for page in PAGES:
        for number, code in enumerate(BLOCK.findall(page.read_text()), start=1):
            yield pytest.param(code, id=f"{page.relative_to(ROOT)}-{number}")


def datasets_at_home(folder, monkeypatch):
    """Keep the cache of `datasets` in a folder, offline and without progress bars, also if it is imported already."""
    for variable in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HF_DATASETS_DISABLE_PROGRESS_BARS"):
        monkeypatch.setenv(variable, "1")
    monkeypatch.setenv("HF_HOME", str(folder))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(folder))
    if "datasets" in sys.modules:
        monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", folder)


def loggers_at_home(monkeypatch):
    """Stand in for TensorBoard and Weights & Biases, which are not installed for the tests."""

    class Writer:
        def add_scalar(self, name, value, step):
            assert isinstance(name, str)
            assert float(value) >= 0 <= float(step)

    def log(metrics):
        assert all(float(value) >= 0 for value in metrics.values())

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=Writer))
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda mode: None, log=log))


@pytest.mark.parametrize("code", list(blocks()))
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
@pytest.mark.filterwarnings("ignore:Length of IterableDataset:UserWarning")
def test_an_example_runs(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    datasets_at_home(tmp_path / "huggingface", monkeypatch)
    if re.search(r"^(from|import) (wandb|torch.utils.tensorboard)", code, re.MULTILINE):
        loggers_at_home(monkeypatch)  # not for others: accelerate looks for wandb, and takes the stand-in for broken
    (tmp_path / "data").mkdir()
    for number in range(3):
        rows = range(number * 40, number * 40 + 40)
        columns = {"id": rows, "text": [f"the text of row {row}" for row in rows], "x": [row / 2 for row in rows]}
        table = pa.table({**columns, "image": [random.randbytes(ROW_BYTES) for _ in rows]})
        pq.write_table(table, tmp_path / "data" / f"part-{number}.parquet", row_group_size=10)
    script = tmp_path / "example.py"
    script.write_text(code)
    if STARTS_PROCESSES.search(code):
        run_as_script(script, tmp_path / "site", monkeypatch)
    else:
        runpy.run_path(str(script), run_name="__main__")


def run_as_script(script, site, monkeypatch):
    """Run a script as users do, in a Python of its own: other processes can import its functions."""
    site.mkdir()
    (site / "sitecustomize.py").write_text(START_METHOD)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), str(ROOT / "src")]))
    ended = subprocess.run(
        [sys.executable, script.name], cwd=script.parent, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert "The work is done in one process only" not in ended.stderr


def test_the_page_for_assistants_names_what_exists():
    for name in re.findall(r"\bme\.([\w.]*\w)", (ROOT / "docs" / "llms.txt").read_text()):
        attrgetter(name)(midepoch)


def test_links_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_folders_that_a_page_names_exist(page):
    for name in re.findall(r"`((?:tests|examples|docs|benchmarks|src)/[\w/.-]*)`", page.read_text()):
        assert (ROOT / name).exists(), f"{page.name} names {name}"
    for name in re.findall(r"`((?:\w+/)*\w+\.py)`", page.read_text()):
        assert (ROOT / name).exists() or (SOURCE / name).exists(), f"{page.name} names {name}"


def test_every_code_of_a_guarantee_is_in_the_name_of_a_test():
    page = (ROOT / "docs" / "guarantees.md").read_text()
    cells = re.findall(r"^\| ((?:[ABC]\d+(?:, )?)+) \|", page, re.MULTILINE)
    rows = [code for cell in cells for code in cell.split(", ")]
    brackets = [code for codes in re.findall(r"\(((?:[ABC]\d+(?:, )?)+)\)", page) for code in codes.split(", ")]
    sources = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    tested = {code for name in re.findall(r"def test_(\w+)", sources) for code in re.findall(r"[ABC]\d+", name)}
    assert len(rows) > 20
    assert set(rows) | set(brackets) <= tested


def tree_of_how_it_works():
    """The entries of its tree: the number of a layer or "", a package or module, and the modules that it names."""
    tree = (ROOT / "docs" / "how-it-works.md").read_text().partition("## The code: ten layers")[2].split("```")[1]
    for entry in re.split(r"\n(?=[ \d]{4}\S)", tree)[1:]:
        number, name = re.match(r" *(\d*) +([\w/]+)", entry).groups()
        yield number, name, re.findall(r"\w+", entry.partition("\n")[2])


def test_the_tree_of_how_it_works_has_every_module():
    for _, name, modules in tree_of_how_it_works():
        if name.endswith("/"):
            inside = {
                path.stem
                for path in (SOURCE / name).iterdir()
                if path.suffix == ".py" or (path / "__init__.py").exists()
            }
            assert sorted(modules) == sorted(inside - {"__init__"}), name
        else:
            assert (SOURCE / f"{name}.py").exists()


def test_the_tree_of_how_it_works_has_the_layers_that_imports_may_not_cross():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    layers = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    named = []
    for number, name, _ in tree_of_how_it_works():
        if number:
            named.append([])
        if name.rstrip("/").count("/") == 0:
            named[-1].append(name.rstrip("/"))
    assert [sorted(names) for names in named] == [sorted(re.findall(r"\w+", layer)) for layer in layers]


def quotes():
    """The messages that troubleshooting quotes, in bold."""
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    return [" ".join(quote.split()) for quote in re.findall(r"\*\*`([^`]*)`\*\*", page)]


@cache
def literals():
    """All text in the code except docstrings. Each constant part of an f-string is a string of its own."""
    found = []
    for path in SOURCE.rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        texts = (node for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))
        found += [node.value for node in texts if id(node) not in docstrings]
    return "\0".join(found)


@pytest.mark.parametrize("quote", quotes())
def test_a_message_that_troubleshooting_quotes_is_in_the_code(quote):
    """A quote has … for whatever differs from case to case; all its other words must be in the code as they are."""
    pieces = [piece for piece in (re.sub(r"^\W+|\W+$", "", piece) for piece in quote.split("…")) if piece]
    assert max(len(piece.split()) for piece in pieces) > 1, "the quote has no words to look for"
    missing = [piece for piece in pieces if piece not in literals()]
    assert missing == [], "no message in the code has these words"
