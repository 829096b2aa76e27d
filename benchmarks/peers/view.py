"""What a scenario asks of a contender, the same for all of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

SEED = 7
PACK = 2048
BUDGET = 32_768  # tokens of a padded batch, padding included
ROWS_OF_A_BUDGET = 16  # of the documents, for samplers that have a fixed number of rows


class NotOfferedError(Exception):
    """The library has no such thing. The message says what it has instead, or why not."""


class NotMeasuredError(Exception):
    """It would take too long. The message says what."""


@dataclass(frozen=True, kw_only=True)
class View:
    """One pass over some data. ``batch_size`` None means row by row; ``shuffle`` is "", "block" or "row".

    ``kind`` and ``work`` say what the loop gets:

    - "texts", "parquet": dicts with ``id, text, number, score``, strings as str. "parquet" is read from Parquet files.
    - "texts" with "tokenise": ``input_ids``, made by :func:`benchmarks.peers.work.tokenise`.
    - "tokens": int32 tensors of 2,048 tokens a row.
    - "documents" with "concat" or "whole": packs of ``PACK`` tokens; with "whole" no document is cut to fill a pack.
    - "documents" with "padded": tensors of whole documents, grouped by length and padded, with an ``attention_mask``.
      A batch has at most ``BUDGET`` tokens, or ``ROWS_OF_A_BUDGET`` rows.
    - "tars": the members of samples in tar files as bytes, not decoded.
    - "images" with "decode": uint8 tensors of 3 × 224 × 224 a row, made by :func:`benchmarks.peers.work.decode`.
    - "numbers": dicts of two numbers.
    """

    kind: str
    folder: str
    batch_size: int | None = 64
    workers: int = 0
    shuffle: str = ""
    work: str = ""


FEW = {
    "tars": ({"midepoch", "webdataset", "datasets"}, "it does not read tar files of samples"),
    "padded": ({"midepoch", "datasets"}, "it does not group rows by their length"),
}
"""What few libraries offer: a kind of data or of work, who has it, and what is said of the others."""


def refuse_what_few_offer(name: str, asked: str) -> None:
    """Raise if a library does not have this kind of data or work."""
    offered_by, reason = FEW.get(asked, ({name}, ""))
    if name not in offered_by:
        raise NotOfferedError(reason)


class Loader(Protocol):
    """What ``load`` of a contender returns. ``state_dict`` and ``load_state_dict`` only where the library has them."""

    def __iter__(self) -> Iterator[Any]: ...


def only_in_order(view: View, *, block: str = "", row: str = "") -> None:
    """Refuse a shuffle. The reasons are those of the library."""
    reason = {"block": block, "row": row}.get(view.shuffle)
    if reason:
        raise NotOfferedError(reason)
