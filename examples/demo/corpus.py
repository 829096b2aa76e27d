"""The corpus of the demo, and the pipeline that makes packed tokens of it."""

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import midepoch as me

FILES, LENGTH = 12, 192
WHO = ["the captain", "a young sailor", "the old cook", "our pilot", "the harbour master", "a quiet passenger"]
DOES = ["looks at", "repairs", "draws", "remembers", "hides", "paints", "sells", "counts"]
WHAT = ["the lantern", "two barrels", "a chart of the coast", "the broken mast", "seven ropes", "the compass", "a map"]
WHEN = ["before dawn", "in the rain", "at low tide", "after the storm", "on the third day", "while the others sleep"]


def write(folder: Path, rows: int) -> None:
    """Write documents of one to four sentences as Parquet files, with their number as ``id``."""
    folder.mkdir(parents=True)
    draw = random.Random(0)
    texts = [" ".join(_sentence(draw) for _ in range(draw.choice([1, 1, 2, 3]))) for _ in range(rows)]
    for number in range(FILES):
        ids = range(rows * number // FILES, rows * (number + 1) // FILES)
        table = pa.table({"id": ids, "text": [texts[row] for row in ids]})
        pq.write_table(table, folder / f"part-{number:02}.parquet", row_group_size=50)


def packs(folder: Path) -> me.Dataset:
    """Shuffled documents as tokens, packed to sequences of one length. Each pack also says which rows are in it."""
    rows = me.read(folder / "corpus", index_dir=folder / "index").shuffle(seed=7)
    tokens = rows.map(tokenize, batched=True, one_to_one=True).select_columns(["id", "input_ids"])
    packed = tokens.pack(LENGTH, eos=0, pad=0, labels="input_ids", overlong="drop", others="join")
    return packed.with_format("torch").survey(folder=folder / "survey")


def tokenize(columns: dict[str, list[Any]]) -> dict[str, list[list[int]]]:
    """A tokenizer that needs no download: the bytes of the text."""
    return {"input_ids": [list(text.encode()) for text in columns["text"]]}


def _sentence(draw: random.Random) -> str:
    return " ".join(draw.choice(words) for words in (WHO, DOES, WHAT, WHEN)) + "."
