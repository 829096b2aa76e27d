"""Packs as arrays, made of the documents that are read and of a layout that says which pieces of them share a pack."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from midepoch._common.hashing import I32, I64
from midepoch.checkpoint.lanes import Cursor
from midepoch.stages.flow import Context, Flow, keys_inside
from midepoch.stages.pack.documents import Documents, Values
from midepoch.stages.pack.spec import IGNORED, PackSpec
from midepoch.stages.pack.strategies import Packs
from midepoch.stages.stacked import StackedRun
from midepoch.values.collate import join_others
from midepoch.values.forms import Form
from midepoch.values.rows import convert_item

STACKED_TOKENS, MOST_STACKED = 1 << 16, 1024
"""The most tokens, and the most packs, of a stream that are made together: they fit the CPU cache."""


def pack_form(inputs: Flow) -> Form:
    """Packs hold tensors where the inputs do, else arrays."""
    return "torch" if inputs.form == "torch" else "numpy"


def not_left_out(keys: I64, context: Context) -> npt.NDArray[np.bool_] | None:
    """Which documents go into packs; None for all of them. The others keep their places in the layout."""
    kept = np.array([key not in context.left_out for key in keys.tolist()], np.bool_) if context.left_out else None
    return None if kept is None or kept.all() else kept


def make_packs(documents: Documents, layout: Packs, spec: PackSpec, form: Form) -> Iterator[dict[str, Any] | None]:
    """The packs of a layout of these documents, one by one; None for one that has no pieces."""
    begins = documents.begins[layout.documents]
    starts, stops = (begins + layout.starts).tolist(), (begins + layout.stops).tolist()
    sizes, inside = layout.stops - layout.starts, layout.documents.tolist()
    for first, last in pairwise(layout.bounds.tolist()):
        if first == last:
            yield None
            continue
        pieces = {
            name: [column[starts[piece] : stops[piece]] for piece in range(first, last)]
            for name, column in documents.columns.items()
        }
        pack = _make_pack(pieces, cumulative(sizes[first:last]), spec, form)
        for name, values in documents.others.items():
            pack[name] = join_others(name, [values[document] for document in inside[first:last]], form)
        yield pack


def _make_pack(pieces: Mapping[str, Sequence[Values]], ends: I32, spec: PackSpec, form: Form) -> dict[str, Any]:
    """A pack in its own memory: the pieces of each column joined and padded, and where each piece begins and ends."""
    real = int(ends[-1])
    total = real if spec.pad is None else max(real, spec.length)
    pack: dict[str, Any] = {}
    for name, arrays in pieces.items():
        values = np.empty(total, arrays[0].dtype)
        np.concatenate(arrays, out=values[:real])
        if total > real:
            values[real:] = spec.pad if name == spec.column else IGNORED if name == "labels" else 0
        pack[name] = values
    pack["position_ids"], pack["document_ids"] = ids_within(ends, total)
    pack["cu_seqlens"] = ends
    converted: dict[str, Any] = convert_item(pack, form) if form == "torch" else pack
    return converted


def stack_packs(
    documents: Documents,
    layout: Packs,
    cursors: Sequence[Cursor],
    kept: npt.NDArray[np.bool_] | None,
    spec: PackSpec,
) -> Iterator[StackedRun]:
    """The packs of a stream, many at a time. Documents that are not ``kept`` are left out of them.

    All packs are full but the last of a lane, and those of which documents are left out.
    """
    firsts, lasts = layout.bounds[:-1], layout.bounds[1:] - 1
    keys = keys_inside(documents.keys[layout.documents[firsts]], layout.starts[firsts]).tolist()
    begins = documents.begins[layout.documents]
    starts, stops = (begins + layout.starts)[firsts].tolist(), (begins + layout.stops)[lasts].tolist()
    full = len(layout) - (stops[-1] - starts[-1] < spec.length) if kept is None else 0
    at_once = max(1, min(MOST_STACKED, STACKED_TOKENS // spec.length))
    for first in range(0, full, at_once):
        some = slice(first, min(first + at_once, full))
        columns = {name: _stacked(column, starts[some], stops[some]) for name, column in documents.columns.items()}
        here = layout.select(np.arange(some.start, some.stop))
        columns["position_ids"], columns["document_ids"], seqlens = _ids_within_each(here, spec.length)
        yield StackedRun(columns, {"cu_seqlens": seqlens}, cursors[some], keys[some])
    rest = layout.select(np.arange(full, len(layout)))
    rest = rest if kept is None else rest.keep(kept[rest.documents])
    for number, pack in enumerate(make_packs(documents, rest, spec, "numpy"), start=full):
        if pack is not None:
            ragged = {"cu_seqlens": [pack.pop("cu_seqlens")]}
            columns = {name: values[None] for name, values in pack.items()}
            yield StackedRun(columns, ragged, cursors[number : number + 1], keys[number : number + 1])


def _stacked(column: Values, starts: Sequence[int], stops: Sequence[int]) -> Values:
    """Equally long parts of a column as lines of one array: a view of the column if they lie side by side."""
    if stops[:-1] == starts[1:]:
        return column[starts[0] : stops[-1]].reshape(len(starts), -1)
    return np.stack([column[start:stop] for start, stop in zip(starts, stops, strict=True)])


def _ids_within_each(layout: Packs, length: int) -> tuple[I32, I32, list[I32]]:
    """``ids_within`` of several full packs, one in each line, and the ``cu_seqlens`` of each."""
    packs, pieces = len(layout), np.diff(layout.bounds)
    sizes = layout.stops - layout.starts
    starts = (np.cumsum(sizes) - sizes - length * layout.owners).astype(np.int32)
    numbers = (np.arange(len(sizes)) - layout.bounds[:-1].repeat(pieces)).astype(np.int32)
    positions = np.arange(length, dtype=np.int32) - starts.repeat(sizes).reshape(packs, length)
    joined = np.insert(starts, layout.bounds[1:], length)
    bounds = (layout.bounds + np.arange(packs + 1)).tolist()
    return positions, numbers.repeat(sizes).reshape(packs, length), [joined[a:b] for a, b in pairwise(bounds)]


def cumulative(sizes: I64) -> I32:
    """Where each piece of a pack begins, and where the last one ends: the ``cu_seqlens`` of attention kernels."""
    ends = np.zeros(len(sizes) + 1, np.int32)
    ends[1:] = sizes.cumsum()
    return ends


def ids_within(ends: I32, total: int) -> tuple[I32, I32]:
    """Each token's position in its piece, and the number of that piece; 0 and -1 on padding up to ``total``."""
    sizes, real = ends[1:] - ends[:-1], int(ends[-1])
    positions, numbers = np.empty(total, np.int32), np.empty(total, np.int32)
    np.subtract(np.arange(real, dtype=np.int32), ends[:-1].repeat(sizes), out=positions[:real])
    numbers[:real] = np.arange(len(sizes), dtype=np.int32).repeat(sizes)
    positions[real:], numbers[real:] = 0, -1
    return positions, numbers
