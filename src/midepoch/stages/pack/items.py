"""A pack, made of the pieces of documents that it holds."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from midepoch._common.types import I32, I64
from midepoch.checkpoint.lanes import Cursor
from midepoch.stages.flow import Flow
from midepoch.stages.pack.documents import Values
from midepoch.stages.pack.spec import IGNORED, PackSpec
from midepoch.stages.pack.strategies import ids_within
from midepoch.stages.stacked import StackedRun
from midepoch.values.forms import Form
from midepoch.values.rows import convert_item

STACKED_TOKENS, MOST_STACKED = 1 << 16, 1024
"""The most tokens, and the most packs, of a stream that are made together: they fit the CPU cache."""


def make_pack(pieces: Mapping[str, Sequence[Values]], ends: I32, spec: PackSpec, form: Form) -> dict[str, Any]:
    """A pack in its own memory: the pieces of each column joined and padded, and where each piece begins and ends."""
    real = int(ends[-1])
    total = real if spec.pad is None else max(real, spec.length)
    item: dict[str, Any] = {}
    for name, arrays in pieces.items():
        values = np.empty(total, arrays[0].dtype)
        np.concatenate(arrays, out=values[:real])
        if total > real:
            values[real:] = spec.pad if name == spec.column else IGNORED if name == "labels" else 0
        item[name] = values
    item["position_ids"], item["document_ids"] = ids_within(ends, total)
    item["cu_seqlens"] = ends
    converted: dict[str, Any] = convert_item(item, form) if form == "torch" else item
    return converted


class StreamCuts(NamedTuple):
    """Where packs are cut from the tokens of documents, and what each pack is known by."""

    begins: Sequence[int]
    ends: Sequence[int]
    """Of each pack, the tokens from ``begins`` to ``ends``."""
    seqlens: Sequence[I32]
    cursors: Sequence[Cursor]
    keys: Sequence[int]


def seqlens_between(document_ends: I64, cuts: tuple[I64, I64], documents: tuple[I64, I64]) -> list[I32]:
    """The ``cu_seqlens`` of packs: 0, where documents end inside of the pack, and its length.

    ``cuts`` say where packs begin and end among the tokens, and ``documents`` which document ends first inside of each
    and which one is its last.
    """
    (begins, ends), (firsts, lasts) = cuts, documents
    sizes = lasts - firsts + 2
    stops = np.cumsum(sizes)
    starts = stops - sizes
    joined = np.arange(sizes.sum()) + (firsts - starts - 1).repeat(sizes)  # the documents that end there
    joined = document_ends.take(joined, mode="clip") - begins.repeat(sizes)
    joined[starts], joined[stops - 1] = 0, ends - begins
    narrow = joined.astype(np.int32)
    return [narrow[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]


def stacked_packs(columns: Mapping[str, Values], cuts: StreamCuts, spec: PackSpec) -> Iterator[StackedRun]:
    """Packs cut from a stream, some at a time. All are full but the last, which may be shorter."""
    count = len(cuts.keys)
    full = count - bool(count and cuts.ends[-1] - cuts.begins[-1] < spec.length)
    at_once = max(1, min(MOST_STACKED, STACKED_TOKENS // spec.length))
    for begin in range(0, full, at_once):
        some = slice(begin, min(begin + at_once, full))
        begins, ends, seqlens = cuts.begins[some], cuts.ends[some], cuts.seqlens[some]
        stacked = {name: _stacked(column, begins, ends) for name, column in columns.items()}
        stacked["position_ids"], stacked["document_ids"] = _ids_within_each(seqlens, spec.length)
        yield StackedRun(stacked, {"cu_seqlens": seqlens}, cuts.cursors[some], cuts.keys[some])
    if full < count:
        pieces = {name: [column[cuts.begins[-1] : cuts.ends[-1]]] for name, column in columns.items()}
        yield stacked_pack(pieces, cuts.seqlens[-1], cuts.cursors[-1], cuts.keys[-1], spec)


def stacked_pack(
    pieces: Mapping[str, Sequence[Values]], ends: I32, cursor: Cursor, key: int, spec: PackSpec
) -> StackedRun:
    """A single pack of any length."""
    pack = make_pack(pieces, ends, spec, "numpy")
    ragged = {"cu_seqlens": [pack.pop("cu_seqlens")]}
    return StackedRun({name: values[None] for name, values in pack.items()}, ragged, [cursor], [key])


def _stacked(column: Values, begins: Sequence[int], ends: Sequence[int]) -> Values:
    """Equally long parts of a column as lines of one array: a view of the column if they lie side by side."""
    if list(ends[:-1]) == list(begins[1:]):
        return column[begins[0] : ends[-1]].reshape(len(begins), -1)
    return np.stack([column[begin:end] for begin, end in zip(begins, ends, strict=True)])


def _ids_within_each(seqlens: Sequence[I32], length: int) -> tuple[I32, I32]:
    """``ids_within`` of several full packs, one in each line."""
    joined = np.concatenate(seqlens)
    firsts = np.cumsum([0, *map(len, seqlens)])
    inside = np.ones(len(joined), bool)
    inside[firsts[1:] - 1] = False  # the end of a pack is no piece's start
    starts, sizes = joined[inside], np.diff(joined, append=0)[inside]
    pieces = np.diff(firsts) - 1
    numbers = np.arange(len(sizes), dtype=np.int32) - (np.cumsum(pieces) - pieces).astype(np.int32).repeat(pieces)
    positions = np.arange(length, dtype=np.int32) - starts.repeat(sizes).reshape(len(seqlens), length)
    return positions, numbers.repeat(sizes).reshape(len(seqlens), length)


def pack_form(inputs: Flow) -> Form:
    """Packs hold tensors where the inputs do, else arrays."""
    return "torch" if inputs.form == "torch" else "numpy"
