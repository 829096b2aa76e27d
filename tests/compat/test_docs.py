"""Every Python example in the README and the docs runs, in order, in a folder with some data."""

import re
import runpy
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks():
    for page in PAGES:
        for number, code in enumerate(BLOCK.findall(page.read_text()), start=1):
            yield pytest.param(code, id=f"{page.relative_to(ROOT)}-{number}")


def datasets_at_home(folder, monkeypatch):
    """Let `datasets`, imported already or not, keep its cache in a folder, ask nobody and draw nothing."""
    for variable in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HF_DATASETS_DISABLE_PROGRESS_BARS"):
        monkeypatch.setenv(variable, "1")
    monkeypatch.setenv("HF_HOME", str(folder))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(folder))
    if "datasets" in sys.modules:
        monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", folder)


@pytest.mark.parametrize("code", list(blocks()))
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
@pytest.mark.filterwarnings("ignore:Length of IterableDataset:UserWarning")
def test_an_example_runs(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    datasets_at_home(tmp_path / "huggingface", monkeypatch)
    (tmp_path / "data").mkdir()
    for number in range(3):
        rows = range(number * 40, number * 40 + 40)
        columns = {"id": rows, "text": [f"the text of row {row}" for row in rows], "x": [row / 2 for row in rows]}
        table = pa.table(columns)
        pq.write_table(table, tmp_path / "data" / f"part-{number}.parquet", row_group_size=10)
    script = tmp_path / "example.py"
    script.write_text(code)
    runpy.run_path(str(script), run_name="__main__")


def test_links_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
        for target in re.findall(r"`((?:tests|examples|docs|benchmarks)/[\w/.-]+\.(?:py|md))`", page.read_text()):
            assert (ROOT / target).exists(), f"{page.name} names {target}"
