"""Every public function, class and method of the API reference has an example, and it runs."""

import inspect
import io
import json
import textwrap
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import midepoch
from reference_page import hidden_members

NAMED = {
    "midepoch.distributed": [
        "Complete",
        "all_epochs",
        "epoch_is_over",
        "gather_state",
        "in_step",
        "one_epoch",
        "split_dataset_by_node",
    ],
    "midepoch.testing": ["assert_elastic", "assert_resumes"],
}
ELSEWHERE = {
    "IcebergDataset",  # a catalog
    "IcebergDataset.create_dataloader",
    "IcebergDataset.load_state_dict",
    "StructuredDataset",  # a bucket
    "fast_load_iterable_dataset",  # the hub
    "load_dataset",
    "from_hf",
    "distributed.Complete",  # tests/compat/test_ranks.py saves with it
    "distributed.all_epochs",  # 10,000 steps
    "Dataset.without",  # 41,200 steps
    "Loader.find",
    "Loader.trace",
}
"""Examples that need what a test of this file does not have. They are only compiled."""


SHOWN = [midepoch.Dataset, midepoch.extending.FrontDoor, midepoch.StructuredDataset]
"""Classes of the reference that others inherit from."""


def public_callables():
    """Each with the name that users write after ``midepoch.``."""
    hidden = hidden_members()
    for name in midepoch.__all__:
        value = getattr(midepoch, name)
        if isinstance(value, type) and issubclass(value, Exception):
            continue
        if inspect.ismodule(value):
            continue
        yield from members_of(name, value, hidden)
    for module in (midepoch.distributed, midepoch.testing):
        for name, value in vars(module).items():
            own = getattr(value, "__module__", "") == module.__name__ and not getattr(value, "_is_protocol", False)
            if own and callable(value) and name in NAMED[module.__name__]:
                yield f"{module.__name__.removeprefix('midepoch.')}.{name}", value


def members_of(name, value, hidden):
    """A value, and the methods of a class that its bases here do not have as they are."""
    yield name, value
    for member, inner in inspect.getmembers(value, callable) if isinstance(value, type) else ():
        function = getattr(inner, "__func__", inner)
        inherited = any(getattr(base, member, None) is inner for base in value.__bases__ if base in SHOWN)
        own = inspect.isfunction(function) and function.__module__.startswith("midepoch") and not inherited
        if own and not hidden.search(member):
            yield f"{name}.{member}", function


CALLABLES = dict(public_callables())


def example_of(value):
    """The lines of a docstring that are indented, up to the next that is not."""
    lines = inspect.cleandoc(value.__doc__ or "").splitlines()
    found = [line for line in lines if line.startswith("    ") or not line]
    return textwrap.dedent("\n".join(found)).strip()


@pytest.mark.parametrize("name", CALLABLES)
def test_there_is_an_example(name):
    example = example_of(CALLABLES[name])
    assert example, f"the docstring of {name} has no example"
    compile(example, name, "exec")


def tokenize(row):
    return {"input_ids": list(row["text"].encode())}


def long_enough(row):
    return len(row["input_ids"]) > 3


def process(sample):
    return {"input_ids": list(sample["messages"][0]["content"].encode())}


class Writer:
    def add_scalar(self, name, value, step):
        assert isinstance(value, float)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder with the files that examples name."""
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    for number in range(3):
        rows = range(number * 40, number * 40 + 40)
        columns = {"id": rows, "text": [f"the text of row {row}" for row in rows], "x": [row / 2 for row in rows]}
        columns["score"] = columns["x"]
        pq.write_table(pa.table(columns), f"data/part-000{number}.parquet", row_group_size=10)
    file = io.BytesIO()
    Image.new("RGB", (4, 3)).save(file, "PNG")
    pq.write_table(pa.table({"picture": [file.getvalue()] * 3}), "pictures.parquet")
    pq.write_table(pa.table({"camera": ["0.mp4"], "timestamp": [0.5]}), "episodes.parquet")
    for split in ("train", "val"):
        Path("images", split, "cat").mkdir(parents=True)
        Path("images", split, "cat", "0.png").write_bytes(file.getvalue())
    chat = {"messages": [{"role": "user", "content": "hello"}]}
    Path("chats.jsonl").write_text("\n".join([json.dumps(chat)] * 8))
    np.arange(9_000, dtype=np.uint16).tofile("train.bin")
    return tmp_path


def things(name):
    """What the example of a name may use without making it."""
    dataset = midepoch.read("data/*.parquet").shuffle(seed=42)
    if name.startswith("StructuredDataset"):
        dataset = midepoch.StructuredDataset.create_dataloader("data", "parquet", batch_size=8)[1]
        torch.save(dataset.state_dict(), "data.pt")
    elif name.startswith("MultiModal"):
        dataset = midepoch.MultiModalIterableDataset("chats.jsonl", processor=process, on_error="skip")
    state = dataset.state_dict()
    read = midepoch.read("data/*.parquet").shuffle(seed=42) if name.startswith("Dataset.") else dataset
    loader = midepoch.Loader(read, batch_size=8, digest="digest" in name)
    for _ in loader:
        if name != "Dataset.digest":
            break
    torch.save({"loader": loader.state_dict()}, "checkpoint.pt")
    others = {one: midepoch.read("data/*.parquet") for one in ("other", "web", "books", "easy", "hard")}
    return {
        "midepoch": midepoch,
        "me": midepoch,
        "torch": torch,
        "numpy": np,
        "pyarrow": pa,
        "DataLoader": DataLoader,
        "dataset": dataset,
        "loader": loader,
        "loaders": [loader],
        "tokenize": process if name == "MultiModalIterableDataset" else tokenize,
        "long_enough": long_enough,
        "last_committed_state": loader.state_dict(),
        "state": state,
        "stateful_dataloader": StatefulDataLoader(midepoch.read("data/*.parquet").shuffle(seed=42), batch_size=None),
        "torchvision_dataset": [{"id": number} for number in range(20)],
        "writer": Writer(),
        "step": 1,
        "model": lambda batch: len(batch["id"]),
        **others,
        **{one: getattr(midepoch, one) for one in ("Loader", "MultiModalIterableDataset", "MultiModalCollator")},
        **{one: getattr(midepoch.testing, one) for one in NAMED["midepoch.testing"]},
        "in_step": midepoch.distributed.in_step,
    }


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
@pytest.mark.parametrize("name", [name for name in CALLABLES if name not in ELSEWHERE])
def test_the_example_runs(name, home):
    exec(compile(example_of(CALLABLES[name]), name, "exec"), things(name))
