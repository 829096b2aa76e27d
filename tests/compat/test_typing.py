"""What type checkers say of code that uses midepoch: what is yielded, and which mistakes are errors."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
STUBS = {
    "pyarrow.pyi": """
from typing import Any

class RecordBatch:
    num_rows: int
    @property
    def columns(self) -> list[Any]: ...

def __getattr__(name: str) -> Any: ...
""",
}
"""What users have installed who want types of Arrow, in a few lines."""

RIGHT = """
import pickle
from collections.abc import Iterator
from typing import Any, TypedDict, assert_type, cast

import pyarrow as pa
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

import midepoch as me
from midepoch.extending import FrontDoor, from_source, plan_of


class Document(TypedDict):
    text: str


class Ours(me.Dataset):
    def own(self) -> int:
        return 1


class Door(FrontDoor):
    def own(self) -> int:
        return 1


def tokens(row: dict[str, Any]) -> dict[str, Any]:
    return {"input_ids": [1], **row}


def numbered(row: dict[str, Any], number: int) -> dict[str, Any]:
    return {"number": number, **row}


def many(rows: dict[str, list[str]]) -> dict[str, list[int]]:
    return {"length": [len(text) for text in rows["text"]]}


def length(row: dict[str, Any]) -> int:
    return len(row["text"])


def is_long(row: dict[str, Any], *, least: int) -> bool:
    return len(row["text"]) >= least


def collated(rows: list[dict[str, Any]]) -> tuple[Tensor, Tensor]:
    raise NotImplementedError


def prepared(dataset: me.Dataset) -> me.Dataset:
    return dataset.map(tokens).batch(4)


def rows_of(path: str) -> Iterator[dict[str, Any]]:
    yield from me.read(path)


Rows = me.Dataset[dict[str, Any]]
rows = me.read("data/*.parquet")
assert_type(rows, Rows)
assert_type(rows.shuffle(seed=1).take(3).shard(2, 0).repeat(2), Rows)
assert_type(rows.train_test_split(0.1).train, Rows)
assert_type(rows.batch(4), Rows)
assert_type(rows.with_format("torch").batch(4), Rows)
assert_type(rows.with_format("arrow").batch(4), me.Dataset[pa.RecordBatch])
assert_type(rows.with_format("arrow").with_format("numpy"), me.Dataset)
assert_type(rows.map(tokens), Rows)
assert_type(rows.map(tokens, remove_columns="text").filter(lambda row: row["id"] > 3).pack(2048, eos=0), Rows)
assert_type(rows.map(many, batched=True, one_to_one=True), Rows)
assert_type(rows.map(length), me.Dataset[int])
assert_type(rows.map(lambda row: len(row["text"])), me.Dataset[int])
assert_type(rows.map(length, with_rng=False, with_indices=False), me.Dataset[int])
rows.map(length, batched=False, with_rng=False).map(bool, batched=bool(rows))
assert_type(rows.filter(length, batched=False, with_indices=False, fn_kwargs=None), Rows)
assert_type(rows.filter(is_long, fn_kwargs={"least": 3}), Rows)
rows.map(is_long, fn_kwargs={"least": 3}, remove_columns=["text"], with_rng=False)
assert_type(rows.map(length).batch(4), me.Dataset)
assert_type(rows.with_format("arrow").map(lambda batch: batch.num_rows), me.Dataset[int])
rows.map(numbered, with_indices=True).map(len, input_columns="text").filter(bool)
rows.filter(is_long, fn_kwargs={"least": 3}).filter(lambda row, number: number > 3, with_indices=True)
rows.filter(lambda texts: [bool(text) for text in texts], batched=True, input_columns=["text"])
assert_type(me.mix([rows, rows.map(tokens)], weights=[1, 2]), Rows)
assert_type(me.concat({"a": rows.map(length), "b": rows.map(length)}), me.Dataset[int])
assert_type(me.from_indexable([1, 2]), me.Dataset[int])
assert_type(rows.map(length).as_map()[3], int)
assert_type(rows.head(3), list[dict[str, Any]])
assert_type(rows.to_list(), list[dict[str, Any]])
assert_type(iter(rows).state_dict(), dict[str, Any])
documents = cast("me.Dataset[Document]", rows)
assert_type(documents.shuffle().filter(lambda row: row["text"] != ""), me.Dataset[Document])
assert_type(documents.map(lambda row: row["text"]), me.Dataset[str])
for row in documents:
    assert_type(row, Document)

assert_type(me.Loader(rows.batch(4), num_workers=2), me.Loader[dict[str, Any]])
assert_type(me.Loader(rows, batch_size=4, even="pad"), me.Loader[dict[str, Any]])
assert_type(me.Loader(rows.with_format("arrow"), 4), me.Loader[pa.RecordBatch])
assert_type(me.Loader(rows, 4, collate_fn=collated), me.Loader[tuple[Tensor, Tensor]])
assert_type(me.Loader(rows.map(length)), me.Loader[int])
assert_type(me.Loader(rows.map(length), batch_size=4), me.Loader)
for batch in me.Loader(rows, 4, collate_fn=collated):
    assert_type(batch, tuple[Tensor, Tensor])
assert_type(DataLoader(rows, batch_size=None), DataLoader[dict[str, Any]])
items: IterableDataset[object] = rows

structured = me.StructuredDataset("data", "parquet")
assert_type(structured.shuffle().map(tokens).map(length).batch(4).with_format("arrow").take(3), me.StructuredDataset)
assert_type(me.MultiModalIterableDataset("chats.jsonl", processor=tokens).take(3), me.MultiModalIterableDataset)
assert_type(me.fast_load_iterable_dataset("org/name").map(tokens), me.SimpleArrowIterableDataset)
loader, dataset = me.StructuredDataset.create_dataloader("data")
assert_type(dataset, me.StructuredDataset)
anything: me.Dataset = prepared(structured)
anything = rows.map(length)
from_source(plan_of(rows).pipeline.source, Ours).shuffle().batch(3).own()
door = from_source(plan_of(rows).pipeline.source, Door)
assert_type(door.map(tokens).map(length).with_format("arrow").batch(3), Door)
copied: me.Dataset[int] = pickle.loads(pickle.dumps(rows))
"""

WRONG = """
from typing import Any

import pyarrow as pa

import midepoch as me

rows = me.read("data/*.parquet")


def of_tables(table: pa.RecordBatch) -> int:
    return table.num_rows


def length(row: dict[str, Any]) -> int:
    return len(row["text"])


def needs_ints(dataset: me.Dataset[int]) -> None: ...


me.raed("data")  # wrong
me.read(3.5)  # wrong
rows.shufle(seed=1)  # wrong
rows.batch(4).shufle(seed=1)  # wrong
rows.map(length).shufle(seed=1)  # wrong
rows.with_format("trch")  # wrong
rows.map(of_tables)  # wrong
rows.map(length, batchd=True)  # wrong
rows.map(lambda: 3)  # wrong
rows.pack(2048, strategy="worst_fit")  # wrong
needs_ints(rows)  # wrong
needs_ints(rows.map(length))
for row in rows:
    row.num_rows  # wrong
for batch in rows.with_format("arrow").batch(3):
    batch.num_rows
    batch.keys()  # wrong
for number in me.Loader(rows.map(length)):
    number["text"]  # wrong
me.Loader(rows, num_wrkers=2)  # wrong
me.Loader(rows, even="maybe")  # wrong
me.Loader("data")  # wrong
me.StructuredDataset("data").map(length).get_metrcs()  # wrong
"""


def test_type_checkers_know_what_is_yielded_and_see_mistakes(tmp_path):
    for name, code in {"right.py": RIGHT, "wrong.py": WRONG, **STUBS}.items():
        (tmp_path / name).write_text(code.lstrip())
    options = ["--strict", "--config-file=", f"--cache-dir={ROOT / '.mypy_cache' / 'users'}"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "right.py", "wrong.py"],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": os.pathsep.join([str(ROOT / "src"), "."])},
        capture_output=True,
        text=True,
    )
    found = re.findall(r"^(\w+\.py):(\d+): error: ", done.stdout, re.MULTILINE)
    lines = WRONG.lstrip().splitlines()
    wrong = {("wrong.py", str(number)) for number, line in enumerate(lines, start=1) if line.endswith("# wrong")}
    assert set(found) == wrong, done.stdout + done.stderr
