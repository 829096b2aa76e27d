"""What the soak reads: the pipelines by name, and the values by which a batch is known.

Values are tokens. No token occurs twice in the files, so what a batch holds says which rows it has, and that they are
whole: token ``1000 * n + j`` is the ``j``-th of document ``n``.
"""

from collections.abc import Mapping
from typing import Any

import midepoch as me

TOKENS_OF_DOCUMENT = 1000
MOST_TOKENS = 12
TAR_SAMPLES = range(100_000, 101_000)

IN_ROWS = ("in order", "shuffled", "permuted", "tar", "filter", "surveyed filter", "mixture", "surveyed mixture")
IN_PACKS = ("packs", "surveyed packs", "stream", "surveyed stream", "mixed packs")
NAMES = (*IN_ROWS, *IN_PACKS, "token batches")


def is_kept(row: dict[str, Any]) -> bool:
    return bool(row["input_ids"][0] // TOKENS_OF_DOCUMENT % 3 != 1)


def from_tar(sample: dict[str, Any]) -> dict[str, Any]:
    """A row like those of the other files, from a sample of a tar file."""
    number = int(sample["id"])
    tokens = range(TOKENS_OF_DOCUMENT * number, TOKENS_OF_DOCUMENT * number + 1 + number % MOST_TOKENS)
    return {"id": number, "input_ids": list(tokens)}


def build(name: str, root: str, *, seed: int, surveys: str, storage_options: Mapping[str, Any] | None) -> me.Dataset:
    """The dataset of that name over the files below ``root``."""
    remote = {"storage_options": storage_options, "read_ahead": "64KiB"} if storage_options else {}

    def read(folder: str) -> me.Dataset:
        return me.read(f"{root}/{folder}", **remote)

    def tar() -> me.Dataset:
        return read("tar").shuffle(seed, window=100).map(from_tar, remove_columns=["txt", "__key__"])

    if name.startswith("surveyed"):
        options = {"seed": seed, "surveys": surveys, "storage_options": storage_options}
        return build(name.removeprefix("surveyed "), root, **options).survey(folder=surveys)
    rows = read("parquet").select_columns(["id", "input_ids"]).shuffle(seed, window=200)
    others = read("arrow").select_columns(["id", "input_ids"])
    kept = rows.filter(is_kept)
    made = {
        "in order": lambda: others,
        "shuffled": lambda: rows,
        "permuted": lambda: others.shuffle(seed, level="row"),
        "tar": tar,
        "filter": lambda: kept,
        "mixture": lambda: me.mix([kept, others, tar()], [3, 2, 1], seed=seed, stop="all"),
        "packs": lambda: kept.pack(64, window=32),
        "stream": lambda: kept.pack(64, strategy="concat"),
        "mixed packs": lambda: me.mix([kept.pack(64, window=32), others.pack(64)], [2, 1], seed=seed, stop="all"),
        "token batches": lambda: rows.batch_by_tokens(96, window=64, pad=-1),
    }
    return made[name]()


def values_of(batch: Any) -> list[int]:
    """The tokens of a batch, a pack, a row, or a list of these, without padding."""
    if isinstance(batch, list):
        return [token for one in batch for token in values_of(one)]
    return [token for token in _flat(batch["input_ids"]) if token >= 0]


def _flat(value: Any) -> list[int]:
    if hasattr(value, "tolist"):
        value = value.tolist()
    return [token for one in value for token in _flat(one)] if isinstance(value, list) else [int(value)]
