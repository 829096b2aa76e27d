"""Stages that pack documents: whole ones inside windows, or one stream of tokens cut at every pack's end.

Nothing that waits in a packer is ever part of a state. A window's cursor is that of any group: where the window began,
and how many of its packs were delivered. The stream's has the same shape: where the first document of the next pack
began, and how many of its tokens were delivered.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from midepoch._common.hashing import key_of, mix64
from midepoch._common.types import I32, I64
from midepoch.checkpoint.lanes import Cursor
from midepoch.errors import CheckpointMismatchError
from midepoch.stages.flow import Context, Emitted, Flow, check_delivered, cut_groups, from_cursor, marks_of
from midepoch.stages.pack.documents import Documents, Values, check_same, read_documents, stretches, windows
from midepoch.stages.pack.spec import IGNORED, Recipe
from midepoch.stages.pack.strategies import STRATEGIES, Strategy, cumulative, ids_within, pack
from midepoch.stages.stage import Stage
from midepoch.values.collate import join_others
from midepoch.values.forms import Form
from midepoch.values.rows import convert_item


@dataclass(frozen=True, slots=True, kw_only=True)
class PackWindows(Stage):
    """Whole documents, or pieces of long ones, laid out inside windows of ``window`` rows."""

    recipe: Recipe
    strategy: Strategy
    window: int
    name = "pack"
    many_outputs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES or self.strategy == "concat":
            raise ValueError(f"strategy is {self.strategy!r}; it can be {', '.join(map(repr, STRATEGIES))}.")
        if self.window < 1:
            raise ValueError(f"window is {self.window}; a window needs at least 1 document.")

    @property
    def group_size(self) -> int:
        return self.window

    def flow(self, inputs: Flow, cursor: Cursor, context: Context) -> Flow:
        """The packs of one window after the other, each made when it is asked for."""
        form = _form_of(inputs)
        return Flow(single=self._steps(inputs, cursor, context, form), form=form, ragged=self.recipe.is_ragged)

    def _steps(self, inputs: Flow, cursor: Cursor, context: Context, form: Form) -> Iterator[Emitted]:
        recipe = self.recipe
        groups = cut_groups(windows(inputs, self.window, recipe, context), self.window)
        for group, start, delivered in from_cursor(groups, cursor):
            documents = read_documents(group, recipe, context)
            packs = pack(documents.lengths, length=recipe.length, strategy=self.strategy, overlong=recipe.overlong)
            check_delivered(delivered, len(packs))
            cursors, keys = marks_of(group, start, len(packs))
            marks = list(zip(map(tuple, cursors.tolist()), keys.tolist(), strict=True))
            begins = (np.cumsum(documents.lengths) - documents.lengths)[packs.documents]
            starts, stops = (packs.starts + begins).tolist(), (packs.stops + begins).tolist()
            sizes, bounds = packs.stops - packs.starts, packs.bounds.tolist()
            for number in range(delivered, len(packs)):
                here = range(bounds[number], bounds[number + 1])
                pieces = {
                    name: [column[starts[piece] : stops[piece]] for piece in here]
                    for name, column in documents.columns.items()
                }
                item = _item(pieces, cumulative(sizes[here.start : here.stop]), recipe, form)
                inside = packs.documents[here.start : here.stop].tolist()
                for name, values in documents.others.items():
                    item[name] = join_others(name, [values[document] for document in inside], form)
                yield item, *marks[number]

    def count(self, inputs: int) -> int | None:
        return None

    def describe(self) -> dict[str, Any] | None:
        """All parameters."""
        return self.recipe.describe() | {"strategy": self.strategy, "window": self.window}


@dataclass(frozen=True, slots=True, kw_only=True)
class PackStream(Stage):
    """All documents as one stream of tokens, cut every ``length``: full packs, but for the last of a lane."""

    recipe: Recipe
    name = "pack"
    many_outputs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.recipe.others == "join":
            raise ValueError("strategy='concat' cuts documents, so it has no place for others='join'. Use another.")
        if self.recipe.overlong == "alone":
            raise ValueError(
                "strategy='concat' cuts documents wherever a pack ends, so overlong='alone' has no meaning. "
                "Use overlong='cut' or 'drop', or another strategy."
            )

    def flow(self, inputs: Flow, cursor: Cursor, context: Context) -> Flow:
        """The packs, as far as the tokens at hand reach."""
        form = _form_of(inputs)
        return Flow(single=self._steps(inputs, cursor, context, form), form=form, ragged=self._is_ragged)

    def _steps(self, inputs: Flow, cursor: Cursor, context: Context, form: Form) -> Iterator[Emitted]:
        length = self.recipe.length
        waiting: list[Stream] = []
        tokens = 0
        for stream in self._streams(inputs, cursor, context):
            waiting.append(stream)
            tokens += len(stream)
            if tokens >= length:
                joined = _join(waiting)
                cuts = range(0, tokens + 1, length)
                yield from self._packs(joined, cuts, form)
                waiting, tokens = [joined.after(cuts[-1])], tokens - cuts[-1]
        if tokens:
            yield from self._packs(_join(waiting), (0, tokens), form)

    def _streams(self, inputs: Flow, cursor: Cursor, context: Context) -> Iterator["Stream"]:
        """The documents that have tokens to pack, from the cursor on."""
        recipe = self.recipe
        *at, delivered = cursor
        start = np.array([at], np.int64)
        for run in stretches(inputs, delivered, recipe, context):
            documents = read_documents(run, recipe, context)
            starts = np.concatenate([start, run.ends[:-1]])
            start = run.ends[-1:]
            kept = documents.lengths > 0
            if recipe.overlong == "drop":
                kept &= documents.lengths <= recipe.length
            if delivered:
                check_delivered(delivered, int(documents.lengths[0]) if kept[0] else 0)
            if not kept.all():
                documents = documents.keep(kept)
            offsets = np.zeros(len(documents.lengths), np.int64)
            stream = Stream(documents, offsets, starts[kept], run.ends[kept], run.keys[kept])
            yield stream.after(delivered) if delivered else stream
            delivered = 0
        if delivered:
            raise CheckpointMismatchError(
                "The state stands inside a document that is not there any more. Restore the data, or start the epoch "
                "anew without the state."
            )

    def _packs(self, stream: "Stream", cuts: Sequence[int], form: Form) -> Iterator[Emitted]:
        """A pack between each cut and the next."""
        marks = list(
            zip(map(tuple, stream.cursors(cuts[1:]).tolist()), stream.keys_at(cuts[:-1]).tolist(), strict=True)
        )
        bounds = np.cumsum(stream.documents.lengths)
        firsts = np.searchsorted(bounds, cuts[:-1], "right")
        lasts = np.searchsorted(bounds, cuts[1:], "left")
        for number, (first, last) in enumerate(zip(firsts.tolist(), lasts.tolist(), strict=True)):
            begin, end = cuts[number], cuts[number + 1]
            inside = np.empty(last - first + 2, np.int32)
            inside[0], inside[-1] = 0, end - begin
            inside[1:-1] = bounds[first:last] - begin
            pieces = {name: [column[begin:end]] for name, column in stream.documents.columns.items()}
            yield _item(pieces, inside, self.recipe, form), *marks[number]

    def _is_ragged(self, name: str) -> bool:
        """Only what is inside a pack differs: packs themselves are equally long, but for the last of a lane."""
        return name == "cu_seqlens"

    def count(self, inputs: int) -> int | None:
        return None

    def describe(self) -> dict[str, Any] | None:
        """All parameters."""
        return self.recipe.describe() | {"strategy": "concat"}


@dataclass(frozen=True, slots=True)
class Stream:
    """Documents that follow each other, with the input's cursors before and behind each, and its key.

    ``offsets`` is how many tokens of each were there before: of none but the first.
    """

    documents: Documents
    offsets: I64
    starts: I64
    ends: I64
    keys: I64

    def __len__(self) -> int:
        return int(self.documents.lengths.sum())

    def after(self, tokens: int) -> "Stream":
        """What follows so many tokens."""
        bounds = np.cumsum(self.documents.lengths)
        first = int(np.searchsorted(bounds, tokens, "right"))
        lengths, offsets = self.documents.lengths[first:].copy(), self.offsets[first:].copy()
        if len(lengths):
            gone = tokens - (int(bounds[first - 1]) if first else 0)
            lengths[0] -= gone
            offsets[0] += gone
        columns = {name: column[tokens:] for name, column in self.documents.columns.items()}
        return Stream(Documents(columns, lengths), offsets, self.starts[first:], self.ends[first:], self.keys[first:])

    def cursors(self, cuts: Sequence[int]) -> I64:
        """The stage's cursor at each cut: behind a document that ends there, else inside the one that does not."""
        bounds = np.cumsum(self.documents.lengths)
        at = np.searchsorted(bounds, cuts, "left")
        whole = bounds[at] == cuts
        inside = self.offsets[at] + cuts - (bounds - self.documents.lengths)[at]
        starts = np.where(whole[:, None], self.ends[at], self.starts[at])
        return np.concatenate([starts, np.where(whole, 0, inside)[:, None]], axis=1)

    def keys_at(self, cuts: Sequence[int]) -> I64:
        """The key of a pack that begins at each cut: that of its first document, and where in that it begins."""
        bounds = np.cumsum(self.documents.lengths)
        at = np.searchsorted(bounds, cuts, "right")
        inside = self.offsets[at] + cuts - (bounds - self.documents.lengths)[at]
        origins = np.fromiter(map(key_of, self.keys[at].tolist()), np.uint64, len(at))
        return mix64(origins + inside.astype(np.uint64)).astype(np.int64)


def _join(streams: Sequence[Stream]) -> Stream:
    """Several stretches of one stream as one, which all have the same columns."""
    full = [stream for stream in streams if len(stream.keys)]
    if len(full) == 1:
        return full[0]
    first = full[0].documents.columns
    for stream in full:
        columns = stream.documents.columns
        if set(columns) != set(first):
            raise ValueError(
                f"pack: one row has the columns {sorted(first)} to pack and another {sorted(columns)}. Let the "
                "function before it return the same columns for every row."
            )
        for name, column in columns.items():
            check_same(name, first[name].dtype, column.dtype)
    joined = {name: np.concatenate([stream.documents.columns[name] for stream in full]) for name in first}
    return Stream(
        Documents(joined, np.concatenate([stream.documents.lengths for stream in full])),
        np.concatenate([stream.offsets for stream in full]),
        np.concatenate([stream.starts for stream in full]),
        np.concatenate([stream.ends for stream in full]),
        np.concatenate([stream.keys for stream in full]),
    )


def _item(columns: Mapping[str, Sequence[Values]], ends: I32, recipe: Recipe, form: Form) -> dict[str, Any]:
    """A pack: its pieces put together and filled up, in memory of its own, and where they begin and end."""
    real = int(ends[-1])
    total = real if recipe.pad is None else max(real, recipe.length)
    item: dict[str, Any] = {}
    for name, pieces in columns.items():
        values = np.empty(total, pieces[0].dtype)
        np.concatenate(pieces, out=values[:real])
        if total > real:
            values[real:] = recipe.pad if name == recipe.column else IGNORED if name == "labels" else 0
        item[name] = values
    item["position_ids"], item["document_ids"] = ids_within(ends, total)
    item["cu_seqlens"] = ends
    converted: dict[str, Any] = convert_item(item, form) if form == "torch" else item
    return converted


def _form_of(inputs: Flow) -> Form:
    """Tensors where items are tensors, else arrays."""
    return "torch" if inputs.form == "torch" else "numpy"
