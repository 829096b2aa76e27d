"""The `webdataset` package itself: the same samples in the same order, of files of its writer and of GNU tar."""

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import midepoch as me
from tars import samples_of, without_nulls

wds = pytest.importorskip("webdataset")
pytestmark = [  # it leaves files open
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def theirs(*paths: Path) -> list[dict[str, Any]]:
    dataset = wds.WebDataset([str(path) for path in paths], shardshuffle=False)
    added = ("__url__", "__local_path__")
    return [{name: value for name, value in sample.items() if name not in added} for sample in dataset]


def test_files_of_its_writer(tmp_path):
    rng = np.random.default_rng(0)
    with wds.ShardWriter(f"{tmp_path}/%06d.tar", maxcount=100, verbose=0) as sink:
        for number in range(250):
            key = f"{number % 7}/{'x' * (number % 120)}{number:05}"
            sample = {"__key__": key, "cls": number % 10, "bin": rng.bytes(number * 9)}
            sink.write(sample if number % 4 else {**sample, "x.json": {"n": number}, "txt": ""})
    paths = sorted(tmp_path.glob("*.tar"))
    assert without_nulls(me.read(f"{tmp_path}/{{000000..000002}}.tar")) == theirs(*paths) == samples_of(*paths)


@pytest.mark.parametrize("format", ["gnu", "posix", "v7"])
def test_files_of_gnu_tar(tmp_path, format):
    names = ["b.jpg", "a.jpg", "a.JSON", "s/a.b.c", "s/.hidden.jpg", "README", "__meta__/x.json", "s/t/"]
    names += [] if format == "v7" else ["l" * 180 + "/" + "m" * 190 + ".txt"]
    for name in names:
        path = tmp_path / "files" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir() if name.endswith("/") else path.write_bytes(name.encode() * 100)
    path = tmp_path / "a.tar"
    command = ["tar", f"--format={format}", "-C", tmp_path / "files", "-cf", path, *names, "b.jpg", "./a.jpg"]
    subprocess.run(command, check=True)
    assert without_nulls(me.read(path)) == theirs(path) == samples_of(path)
