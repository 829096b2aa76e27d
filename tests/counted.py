"""Random pipelines whose items are counted, over small files."""

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import strategies as st

import midepoch as me
from surveys import surveyed

ROWS = 60


def length_of(number):
    return (number * 7919) % 13


def is_kept(row):
    return row["id"] % 3 != 0


def is_odd(row):
    return row["id"] % 2 == 1


def are_kept(columns):
    return [number % 3 != 0 for number in columns["id"]]


def add_one(row):
    return {"id": row["id"]}


def same_columns(columns):
    return {"id": list(columns["id"])}


def write_files(folder):
    """Arrow streams of numbered rows with lists of tokens."""
    number = 0
    for file, rows in enumerate((17, 0, 31, ROWS - 48)):
        ids = list(range(number, number + rows))
        table = pa.table(
            {
                "id": pa.array(ids, pa.int64()),
                "input_ids": pa.array([[i] * length_of(i) for i in ids], pa.list_(pa.int32())),
            }
        )
        with pa.OSFile(str(folder / f"{file}.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            for batch in table.to_batches(max_chunksize=5):
                writer.write_batch(batch)
        number += rows


FIRST_ROWS = {"0.arrow": 0, "1.arrow": 17, "2.arrow": 17, "3.arrow": 48}
"""The number of the first row of each file."""


def named(numbers):
    """The files and rows of these numbers."""
    pairs = []
    for number in sorted(numbers):
        file = next(name for name in ("3.arrow", "2.arrow", "0.arrow") if number >= FIRST_ROWS[name])
        pairs.append((file, number - FIRST_ROWS[file]))
    return pairs


def numbers_in(table):
    """The numbers of the rows of a trace."""
    return [FIRST_ROWS[line["file"]] + line["row"] for line in table.to_pylist()]


stages = st.lists(
    st.sampled_from(["map", "batched", "filter", "batched filter", "filter2", "columns", "python"]), max_size=4
)
packs = st.sampled_from([None, "best_fit", "first_fit", "balanced", "concat", "tokens"])
orders = st.sampled_from(["none", "row", "block", "file"])


def packed(dataset, strategy, length, window, overlong, eos):
    if strategy == "tokens":
        return dataset.batch_by_tokens(length, window=window, overlong=overlong, pad=9, max_rows=window)
    options = {} if strategy == "concat" else {"window": window}
    return dataset.pack(length, strategy=strategy, overlong=overlong, eos=eos, **options)


@st.composite
def pipelines(draw, *, batched=True):
    """What to do to a dataset, as a function of it."""
    order, names, pack = draw(orders), draw(stages), draw(packs)
    window, length = draw(st.integers(1, 9)), draw(st.integers(1, 20))
    overlong = draw(st.sampled_from(["cut", "drop"] if pack == "concat" else ["cut", "drop", "alone"]))
    eos, drop_last = draw(st.sampled_from([None, 7])), draw(st.booleans())
    batch = draw(st.sampled_from([None, 1, 3])) if batched else None
    where = draw(st.booleans())

    def build(folder):
        filters = pc.field("id") % 7 != 3 if where and hasattr(pa.compute.Expression, "__mod__") else None
        if where and filters is None:
            filters = pc.field("id") > 4
        dataset = me.read(folder, filters=filters)
        if order != "none":
            dataset = dataset.shuffle(3, level=order)
        for name in names:
            if name == "map":
                dataset = dataset.map(add_one)
            elif name == "batched":
                dataset = dataset.map(same_columns, batched=True, batch_size=4, one_to_one=True)
            elif name == "filter":
                dataset = dataset.filter(is_kept)
            elif name == "batched filter":
                dataset = dataset.filter(are_kept, batched=True, batch_size=window)
            elif name == "filter2":
                dataset = dataset.filter(is_odd)
            elif name == "columns":
                dataset = dataset.select_columns(["id", "input_ids"])
            else:
                dataset = dataset.with_format("python")
        if pack is not None:
            dataset = packed(dataset, pack, length, window, overlong, eos)
        if batch is not None:
            dataset = dataset.batch(batch, drop_last_batch=drop_last)
        return surveyed(dataset)

    return build


@st.composite
def mixtures(draw):
    """A mixture, maybe of mixtures. Its rows may be packed after they are mixed."""
    mix, pack = draw(nested_mixtures()), draw(packs)
    window, length, eos = draw(st.integers(1, 9)), draw(st.integers(1, 20)), draw(st.sampled_from([None, 7]))
    overlong, between = draw(st.sampled_from(["cut", "drop"])), draw(st.booleans())

    def build(folder):
        dataset = mix(folder)
        if pack is None:
            return dataset
        if between:
            dataset = dataset.map(same_columns, batched=True, batch_size=4, one_to_one=True)
        return packed(dataset, pack, length, window, overlong, eos).survey()

    return build


@st.composite
def nested_mixtures(draw, depth=2):
    parts = [
        draw(nested_mixtures(depth=depth - 1)) if depth > 1 and draw(st.integers(0, 3)) == 0 else draw(plain_parts())
        for _ in range(draw(st.integers(1, 3)))
    ]
    weights = draw(st.lists(st.sampled_from([1, 2, 5, 0.3, 0.25]), min_size=len(parts), max_size=len(parts)))
    stop = draw(st.sampled_from(["first", "all"]))
    seed = draw(st.integers(0, 3))
    return lambda folder: me.mix([part(folder) for part in parts], weights=weights, seed=seed, stop=stop)


@st.composite
def plain_parts(draw):
    order, take, kind = draw(orders), draw(st.sampled_from([0, 1, 7, ROWS])), draw(st.sampled_from(["rows", "filter"]))

    def build(folder):
        dataset = me.read(folder)
        dataset = dataset if order == "none" else dataset.shuffle(2, level=order)
        dataset = dataset.take(take)
        return surveyed(dataset.filter(is_kept) if kind == "filter" else dataset)

    return build
