"""A Loader's batches have tensors: of any columns, through any stages, they are what a naive model says."""

import tempfile
from pathlib import Path

import pyarrow as pa
import torch
from hypothesis import given
from hypothesis import strategies as st

import midepoch as me
from files import write

NUMBERS = st.integers(-(2**40), 2**40)
KINDS = {
    "numbers": (pa.int64(), NUMBERS),
    "numbers or null": (pa.int64(), st.none() | NUMBERS),
    "floats": (pa.float32(), st.floats(width=32, allow_nan=False)),
    "floats or null": (pa.float32(), st.none() | st.floats(width=32, allow_nan=False)),
    "booleans": (pa.bool_(), st.booleans()),
    "texts": (pa.string(), st.text(max_size=5)),
    "texts or null": (pa.string(), st.none() | st.text(max_size=5)),
    "even lists": (pa.list_(pa.int64()), st.lists(NUMBERS, min_size=2, max_size=2)),
    "fixed lists": (pa.list_(pa.int64(), 2), st.lists(NUMBERS, min_size=2, max_size=2)),
    "ragged lists": (pa.list_(pa.int64()), st.lists(NUMBERS, max_size=3)),
    "ragged lists or null": (pa.list_(pa.int64()), st.none() | st.lists(NUMBERS, max_size=3)),
    "lists with null": (pa.large_list(pa.float32()), st.lists(st.none() | st.floats(0, 1, width=32), max_size=3)),
    "lists of texts": (pa.list_(pa.string()), st.lists(st.text(max_size=3), min_size=1, max_size=2)),
}


@st.composite
def tables(draw):
    rows = draw(st.integers(1, 12))
    kinds = draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=3, unique=True))
    columns = {kind: draw(st.lists(KINDS[kind][1], min_size=rows, max_size=rows)) for kind in kinds}
    return pa.record_batch({kind: pa.array(values, KINDS[kind][0]) for kind, values in columns.items()})


def as_it_is(row):
    return dict(row)


def columns_as_they_are(columns):
    return dict(columns)


def keep(row):
    return True


STAGES = {
    "none": lambda dataset: dataset,
    "shuffle": lambda dataset: dataset.shuffle(seed=1),
    "map": lambda dataset: dataset.map(as_it_is),
    "batched map": lambda dataset: dataset.map(columns_as_they_are, batched=True, batch_size=4, one_to_one=True),
    "filter": lambda dataset: dataset.filter(keep),
    "mix": lambda dataset: me.mix([dataset, dataset], [1, 1], stop="all"),
}


def check(column, values):
    """What DESIGN calls the batches that users of torch expect, in a few lines."""
    flat = [value for one in values for value in (one if isinstance(one, list) else [one])]
    has_null = None in values or None in flat
    if has_null or any(isinstance(value, str) for value in flat):
        assert type(column) is list
        assert [one.tolist() if isinstance(one, torch.Tensor) else one for one in column] == values
    elif not isinstance(values[0], list) or len(set(map(len, values))) == 1:
        assert type(column) is torch.Tensor
        assert column.tolist() == values
    else:
        assert type(column) is list
        assert all(type(one) is torch.Tensor for one in column)
        assert [one.tolist() for one in column] == values
        assert len({one.dtype for one in column}) == 1  # empty ones too


@given(table=tables(), stage=st.sampled_from(sorted(STAGES)), size=st.integers(1, 5), batched=st.booleans())
def test_every_column_of_a_batch_is_what_a_naive_model_says(table, stage, size, batched):
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "a.arrow", table)
        dataset = STAGES[stage](me.read(path, index_dir=folder))
        loader = me.Loader(dataset.batch(size)) if batched else me.Loader(dataset, batch_size=size)
        rows = me.Loader(dataset.with_format("python"), batch_size=size)
        got = list(loader)
        for batch, plain in zip(got, rows, strict=True):
            assert list(batch) == list(plain)
            for name, column in batch.items():
                check(column, plain[name])
        assert sum(len(next(iter(batch.values()))) for batch in got) == table.num_rows * (2 if stage == "mix" else 1)
