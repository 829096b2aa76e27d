"""Small datasets and pipelines for tests: files with numbered rows, and hypothesis strategies over them."""

import csv
import gzip
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st
from pyarrow import orc

import midepoch as me

FORMATS = ("stream", "file", "parquet")
TEXTS = ("jsonl", "json", "csv", "jsonl.gz")
SUFFIXES = {"stream": ".arrow", "file": ".arrow", "json": ".array.jsonl"} | {
    kind: f".{kind}" for kind in ("parquet", "orc", "jsonl", "csv", "jsonl.gz")
}


def table(first: int, rows: int) -> pa.Table:
    """Rows numbered from ``first`` on, with a text, a list and a number that may be null."""
    ids = range(first, first + rows)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "text": pa.array([f"row {number}" for number in ids], pa.string()),
            "tokens": pa.array([[number] * (number % 4) for number in ids], pa.list_(pa.int32())),
            "maybe": pa.array([None if number % 5 == 0 else number for number in ids], pa.int32()),
        }
    )


def plain_table(first: int, rows: int, lists: bool) -> pa.Table:
    """The same rows with types that text formats have, and texts of several lines; the list column is optional."""
    ids = range(first, first + rows)
    texts = [f"row {number}" + ('\n"of two", lines' if number % 3 == 0 else "") for number in ids]
    plain = table(first, rows).drop_columns([] if lists else ["tokens"])
    schema = pa.schema([("id", "int64"), ("text", "string"), ("tokens", pa.list_(pa.int64())), ("maybe", "int64")])
    return plain.cast(pa.schema([schema.field(name) for name in plain.column_names])).set_column(
        1, schema.field("text"), pa.array(texts, pa.string())
    )


def text_bytes(rows: pa.Table, kind: str) -> bytes:
    """The rows as JSON lines, a JSON array, or CSV."""
    if kind == "csv":
        sink = io.StringIO()
        writer = csv.writer(sink, lineterminator="\r\n")
        writer.writerows([rows.column_names, *(row.values() for row in rows.to_pylist())])
        return sink.getvalue().encode()
    if kind == "json":
        return json.dumps(rows.to_pylist(), indent=1).encode()
    lines = b"".join(json.dumps(row).encode() + b"\n" for row in rows.to_pylist())
    return gzip.compress(lines) if kind == "jsonl.gz" else lines


def write(path: Path, rows: pa.Table, kind: str, block: int) -> None:
    """One file in blocks of ``block`` rows. Text files get their blocks when they are scanned."""
    if kind in TEXTS:
        path.write_bytes(text_bytes(rows, kind))
        return
    if kind == "orc":
        orc.write_table(rows, path, stripe_size=1, batch_size=block)
        return
    if kind == "parquet":
        pq.write_table(rows, path, row_group_size=block)
        return
    open_writer = pa.ipc.new_stream if kind == "stream" else pa.ipc.new_file
    with pa.OSFile(str(path), "wb") as sink, open_writer(sink, rows.schema) as writer:
        writer.write_table(rows, max_chunksize=block)


def write_files(folder: Path, sizes: Sequence[int], kinds: Sequence[str] = FORMATS, block: int = 10) -> Path:
    """One file for each size. The ids of their rows count through all files."""
    folder.mkdir(parents=True, exist_ok=True)
    first = 0
    for number, size in enumerate(sizes):
        kind = kinds[number % len(kinds)]
        plain = not {*kinds}.isdisjoint(TEXTS)
        rows = plain_table(first, size, "csv" not in kinds) if plain else table(first, size)
        write(folder / f"part-{number:04d}{SUFFIXES[kind]}", rows, kind, block)
        first += size
    return folder


def ids(items: Any) -> list[int]:
    """The ids of items, which are rows or batches of rows."""
    found: list[int] = []
    for item in items:
        value = item["id"]
        if isinstance(value, pa.Array):
            found += value.to_pylist()
        elif hasattr(value, "tolist"):
            found += value.tolist() if getattr(value, "ndim", 0) else [value.tolist()]
        else:
            found += value if isinstance(value, list) else [value]
    return found


def through_json(state: Any) -> Any:
    return json.loads(json.dumps(state))


def plus_one(item: dict[str, Any]) -> dict[str, Any]:
    return {"next": item["id"] + 1}


def jitter(item: dict[str, Any], rng: Any) -> dict[str, Any]:
    return {"noise": float(rng.random())}


def is_kept(item: dict[str, Any]) -> bool:
    return item["id"] % 3 != 1


def is_late(item: dict[str, Any]) -> bool:
    return item["id"] > 20


def keep_even(columns: dict[str, Any]) -> list[bool]:
    return [number % 2 == 0 for number in columns["id"]]


def spread(columns: dict[str, Any]) -> dict[str, Any]:
    """Zero, one or two rows for each row."""
    return {"id": [number for number in columns["id"] for _ in range(number % 3)]}


def batch_is_kept(item: dict[str, Any]) -> bool:
    return sum(item["id"]) % 4 != 0


@dataclass(frozen=True)
class World:
    """Files and a pipeline over them, which can be built many times."""

    sizes: list[int]
    kinds: list[str]
    block: int
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)

    def write(self, folder: Path) -> Path:
        return write_files(folder, self.sizes, self.kinds, self.block)

    def build(self, folder: Path) -> me.Dataset:
        with patch.multiple("midepoch.formats.text.records", BLOCK_RECORDS=self.block, PACKED_BYTES=40 * self.block):
            dataset = me.read(folder)
        for name, args, options in self.calls:
            if "csv" in self.kinds:
                args = tuple(
                    [name for name in one if name != "tokens"] if isinstance(one, list) else one for one in args
                )
                kept = [name for name in options.get("remove_columns", ()) if name != "tokens"]
                options = {**options, "remove_columns": kept} if kept else options
            dataset = getattr(dataset, name)(*args, **options)
        return dataset


ORDERS = st.lists(
    st.one_of(
        st.tuples(
            st.just("shuffle"),
            st.tuples(st.integers(0, 3)),
            st.fixed_dictionaries(
                {
                    "level": st.sampled_from(["file", "block", "row"]),
                    "window": st.integers(1, 30),
                    "window_blocks": st.integers(1, 6),
                    "window_bytes": st.sampled_from([1, 2000, "1MiB"]),
                }
            ),
        ),
        st.tuples(st.just("take"), st.tuples(st.integers(0, 60)), st.just({})),
        st.tuples(st.just("skip"), st.tuples(st.integers(0, 20)), st.just({})),
    ),
    max_size=2,
).filter(lambda steps: not _files_after_rows(steps))

ROW_STAGES = [
    ("map", (plus_one,), {}),
    ("map", (jitter,), {"with_rng": True}),
    ("filter", (is_kept,), {}),
    ("filter", (is_late,), {}),
    ("filter", (keep_even,), {"batched": True}),
    ("map", (spread,), {"batched": True, "batch_size": 5, "remove_columns": ["text", "tokens", "maybe"]}),
    ("select_columns", (["id", "tokens", "text", "maybe"],), {}),
]
BATCHES = [("batch", (size,), {"drop_last_batch": drop}) for size in (1, 2, 3, 7) for drop in (False, True)]
BATCH_STAGES = [("filter", (batch_is_kept,), {}), ("batch", (2,), {})]


def _files_after_rows(steps: list[tuple[str, Any, dict[str, Any]]]) -> bool:
    """True if files would be shuffled after their rows, which raises."""
    levels = [options["level"] for name, _, options in steps if name == "shuffle"]
    return any(level == "file" and set(levels[:number]) & {"row", "block"} for number, level in enumerate(levels))


@st.composite
def stages(draw: Any, uniform: bool = False) -> list[Any]:
    """Up to four stages that fit together."""
    allowed = [
        stage
        for stage in ROW_STAGES
        if not uniform or stage[0] in ("select_columns",) or stage[1][0] in (plus_one, jitter)
    ]
    chosen: list[Any] = []
    spreads = 0
    for _ in range(draw(st.integers(0, 2))):
        stage = draw(st.sampled_from(allowed))
        if stage[0] == "select_columns" and chosen:
            continue
        if stage[1][0] is spread:
            spreads += 1
            if spreads > 1 or any(one[1][0] in (plus_one, jitter) for one in chosen):
                continue
        chosen.append(stage)
    if draw(st.booleans()):
        chosen.append(draw(st.sampled_from(BATCHES)))
        if draw(st.booleans()) and not uniform:
            chosen.append(BATCH_STAGES[0])
    return chosen


@st.composite
def worlds(draw: Any, uniform: bool = False, lanes: bool = True) -> World:
    """Files of random sizes and formats, and a pipeline over them."""
    sizes = draw(st.lists(st.sampled_from([0, 1, 2, 7, 13, 20, 33]), min_size=1, max_size=4))
    kinds = draw(st.lists(st.sampled_from((*FORMATS, *TEXTS, "orc")), min_size=1, max_size=3))
    if not any(sizes):  # only a file that states its columns may be without rows
        kinds = ["csv" if kind in TEXTS else kind for kind in kinds]
    calls = [*draw(ORDERS), *draw(stages(uniform=uniform))]
    if lanes:
        calls.append(("lanes", (draw(st.integers(1, 6)),), {}))
    return World(sizes, kinds, draw(st.integers(1, 12)), calls)


def documents(first: int, lengths: Sequence[int]) -> pa.Table:
    """Documents of these lengths: the ``j``-th token of document ``n`` is ``1000 * n + j``."""
    tokens = [[1000 * number + place for place in range(size)] for number, size in enumerate(lengths, start=first)]
    return pa.table(
        {
            "id": pa.array(range(first, first + len(lengths)), pa.int64()),
            "input_ids": pa.array(tokens, pa.list_(pa.int32())),
            "loss_mask": pa.array([[token % 3 for token in one] for one in tokens], pa.list_(pa.int64())),
        }
    )


def write_documents(
    folder: Path, lengths: Sequence[int], kinds: Sequence[str] = FORMATS, block: int = 4, files: int = 3
) -> Path:
    """Documents of these lengths, spread over ``files`` files."""
    folder.mkdir(parents=True, exist_ok=True)
    each = -(-len(lengths) // files)
    for number in range(files):
        kind, own_lengths = kinds[number % len(kinds)], lengths[number * each : (number + 1) * each]
        write(folder / f"part-{number:04d}{SUFFIXES[kind]}", documents(number * each, own_lengths), kind, block)
    return folder


def as_arrays(row: dict[str, Any]) -> dict[str, Any]:
    return {"input_ids": np.asarray(row["input_ids"]).astype(np.int32)}


def halves(columns: dict[str, Any]) -> dict[str, Any]:
    """Two documents for each: its first half, and the rest."""
    cut = {
        name: [part for one in columns[name] for part in (one[: len(one) // 2], one[len(one) // 2 :])]
        for name in ("input_ids", "loss_mask")
    }
    return {**cut, "id": [number for number in columns["id"] for _ in range(2)]}


def is_no_seventh(row: dict[str, Any]) -> bool:
    return row["id"] % 7 != 3


def pack_noise(pack: dict[str, Any], rng: Any) -> dict[str, Any]:
    return {"noise": int(rng.integers(1 << 40)), "first": int(pack["input_ids"][0])}


def has_even_start(pack: dict[str, Any]) -> bool:
    return int(pack["input_ids"][0]) % 2 == 0


BEFORE_PACKS = [
    ("map", (as_arrays,), {}),
    ("filter", (is_no_seventh,), {}),
    ("map", (halves,), {"batched": True, "batch_size": 5}),
    ("with_format", ("torch",), {}),
    ("with_format", ("numpy",), {}),
]
AFTER_PACKS = [
    ("map", (pack_noise,), {"with_rng": True}),
    ("filter", (has_even_start,), {}),
    ("batch", (2,), {}),
    ("with_format", ("python",), {}),
    ("pack", (9,), {"strategy": "first_fit", "window": 3}),
    ("pack", (11,), {"strategy": "concat"}),
]


@dataclass(frozen=True)
class PackWorld:
    """Documents, and a pipeline that packs them."""

    lengths: list[int]
    kinds: list[str]
    block: int
    options: dict[str, Any]
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]]

    def write(self, folder: Path) -> Path:
        return write_documents(folder, self.lengths, self.kinds, self.block)

    def build(self, folder: Path) -> me.Dataset:
        dataset = me.read(folder)
        for name, args, options in self.calls:
            dataset = getattr(dataset, name)(*args, **options)
        return dataset


@st.composite
def pack_worlds(draw: Any, around: bool = True) -> PackWorld:
    """Documents of random lengths, packed in a random way, with or without stages before and after."""
    lengths = draw(st.lists(st.sampled_from([0, 0, 1, 2, 3, 5, 8, 13, 40]), min_size=1, max_size=40))
    strategy = draw(st.sampled_from(["best_fit", "first_fit", "balanced", "concat"]))
    options = {
        "length": draw(st.sampled_from([1, 2, 5, 8, 16, 50])),
        "strategy": strategy,
        "window": draw(st.sampled_from([1, 2, 5, 16, 64])),
        "overlong": draw(st.sampled_from(["cut", "drop"] + ["alone"] * (strategy != "concat"))),
        "eos": draw(st.sampled_from([None, 7])),
        "pad": draw(st.sampled_from([None, 9])),
        "labels": draw(st.sampled_from([None, "input_ids"])),
    }
    shuffle = draw(st.sampled_from([None, "file", "block", "row"]))
    before = draw(st.lists(st.sampled_from(BEFORE_PACKS), max_size=2)) if around else []
    after = draw(st.lists(st.sampled_from(AFTER_PACKS), max_size=2)) if around else []
    calls: list[Any] = [] if shuffle is None else [("shuffle", (3,), {"level": shuffle, "window": 8})]
    calls += [*before, ("pack", (), options), *_fitting(after)]
    calls.append(("lanes", (draw(st.integers(1, 5)),), {}))
    kinds = draw(st.lists(st.sampled_from(FORMATS), min_size=1, max_size=3))
    return PackWorld(lengths, kinds, draw(st.integers(1, 9)), options, calls)


def _fitting(stages: list[Any]) -> list[Any]:
    """The stages up to a batch: items after it are not packs any more."""
    names = [name for name, _, _ in stages]
    return stages[: names.index("batch") + 1] if "batch" in names else stages
