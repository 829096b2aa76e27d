"""Packs of a surveyed pipeline have the tokens of its column, whatever stages name, type, add or remove columns."""

import json
from itertools import islice, pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import midepoch as me
from files import write
from midepoch.counting import survey

COLUMNS = ("text", "id", "short", "long", "input_ids")
NAMES = st.sampled_from(("input_ids", "a", "b", "c", "text"))
LIST_TYPES = (pa.list_(pa.int32()), pa.large_list(pa.int64()), pa.list_(pa.int64()))


class Model:
    """What users expect: all rows as dicts. Each method makes one change to these rows and to the dataset."""

    def __init__(self, dataset, rows):
        self.dataset = dataset
        self.size = len(rows)
        self.numbered = list(enumerate(rows))

    @property
    def names(self):
        return [] if not self.numbered else list(self.numbered[0][1])

    @property
    def lists(self):
        return [name for name in self.names if all(isinstance(row[name], list) for _, row in self.numbered)]

    def rename(self, names):
        self.numbered = [
            (number, {names.get(name, name): value for name, value in row.items()}) for number, row in self.numbered
        ]

    def keep(self, names):
        self.numbered = [(number, {name: row[name] for name in names}) for number, row in self.numbered]

    def rename_column(self, draw):
        old, new = draw(st.sampled_from(self.names)), draw(NAMES.filter(lambda name: name not in self.names))
        self.dataset = self.dataset.rename_column(old, new)
        self.rename({old: new})

    def swap_columns(self, draw):
        one, other = draw(st.permutations(self.names))[:2]
        self.dataset = self.dataset.rename_columns({one: other, other: one})
        self.rename({one: other, other: one})

    def remove_columns(self, draw):
        removed = draw(st.lists(st.sampled_from(self.names), max_size=2, unique=True))
        self.dataset = self.dataset.remove_columns(removed)
        self.keep([name for name in self.names if name not in removed])

    def select_columns(self, draw):
        chosen = draw(st.lists(st.sampled_from(self.names), min_size=1, unique=True))
        self.dataset = self.dataset.select_columns(chosen)
        self.keep(chosen)

    def cast_column(self, draw):
        wanted = draw(st.sampled_from(LIST_TYPES))
        self.dataset = self.dataset.cast_column(draw(st.sampled_from(self.lists)), wanted)

    def cast(self, draw):
        self.dataset = self.dataset.cast(dict.fromkeys(self.lists, draw(st.sampled_from(LIST_TYPES))))

    def add_column(self, draw):
        name = draw(NAMES.filter(lambda name: name not in self.names))
        seed = draw(st.integers(0, 3))
        values = [list(range((number * 7 + seed) % 6)) for number in range(self.size)]
        self.dataset = self.dataset.add_column(name, pa.array(values, pa.list_(pa.int64())))
        self.numbered = [(number, {**row, name: values[number]}) for number, row in self.numbered]

    def filter(self, draw):
        left_out = draw(st.integers(0, 4))
        self.dataset = self.dataset.filter(lambda row, number: number % 5 != left_out, with_indices=True)
        self.numbered = [(number, row) for number, row in self.numbered if number % 5 != left_out]

    def with_format(self, draw):
        self.dataset = self.dataset.with_format(draw(st.sampled_from(["python", "numpy", "arrow"])))


CHANGES = ["rename_column", "swap_columns", "remove_columns", "select_columns", "cast_column", "cast", "add_column"]
CHANGES += ["filter", "with_format"]


def rows_of(count):
    rng = np.random.default_rng(3)

    def numbers(most):
        return rng.integers(0, 99, rng.integers(0, most)).tolist()

    return [
        {"text": f"row {row}", "id": row, "short": numbers(3), "long": numbers(9), "input_ids": numbers(6)}
        for row in range(count)
    ]


def write_rows(folder, kind, files, columns):
    """Files with blocks of these sizes, and columns in this order."""
    types = {"text": pa.string(), "id": pa.int64()}
    schema = pa.schema([(name, types.get(name, pa.list_(pa.int64()))) for name in columns])
    rows = [{name: row[name] for name in columns} for row in rows_of(sum(map(sum, files)))]
    left = iter(rows)
    for number, sizes in enumerate(files):
        blocks = [list(islice(left, size)) for size in sizes]
        if kind == "jsonl":
            lines = [json.dumps(row) + "\n" for block in blocks for row in block]
            (folder / f"{number}.jsonl").write_text("".join(lines))
        else:
            batches = [pa.RecordBatch.from_pylist(block, schema) for block in blocks]
            write(folder / f"{number}.arrow", batches, kind)
    return rows


def documents(packs, column):
    for pack in packs:
        yield from (pack[column][begin:end].tolist() for begin, end in pairwise(pack["cu_seqlens"].tolist()))


@settings(max_examples=80)
@given(data=st.data())
def test_a_surveyed_pack_has_the_tokens_of_its_column(tmp_path_factory, data):
    draw, folder = data.draw, tmp_path_factory.mktemp("data")
    kind = draw(st.sampled_from(["stream", "file", "parquet", "jsonl"]))
    files = draw(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=3), min_size=1, max_size=3))
    columns = draw(st.permutations(COLUMNS))
    rows = write_rows(folder, kind, files, columns)
    model = Model(me.read(folder), rows)
    for change in draw(st.lists(st.sampled_from(CHANGES), max_size=5)):
        assume(model.numbered and model.lists and len(model.names) > 1)
        if change == "add_column":
            assume(len(model.names) < 5)
        getattr(model, change)(draw)
    assume(model.numbered and model.lists)
    column = draw(st.sampled_from(model.lists))
    expected = [row[column] for _, row in model.numbered]
    with pytest.MonkeyPatch.context() as patch:
        unit = draw(st.sampled_from([1, 300, 1 << 20]))
        patch.setattr(survey, "SMALLEST_UNIT", unit)
        patch.setattr(survey, "COLUMN_BYTES", unit)
        patch.setattr("midepoch._common.jobs.usable_cores", lambda: 1)
        stream = model.dataset.pack(8, column=column, strategy="concat").survey()
        packs = model.dataset.pack(16, column=column, overlong="alone").survey()
    tokens = [token for document in expected for token in document]
    assert [token for pack in stream for token in pack[column].tolist()] == tokens
    assert len(stream) == -(-len(tokens) // 8)
    assert sorted(filter(None, documents(packs, column))) == sorted(filter(None, expected))
    assert len(packs) == len(list(packs))
