"""Chats with images, audio and video, through a user's processor, into samples, packs and batches."""

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from midepoch._common.checks import Size, check_choice, check_integer, count
from midepoch._common.files import check_trust
from midepoch.dataset import Dataset, file_rows, plan_of, with_stage
from midepoch.dataset.read import ReadOptions
from midepoch.delivery.passes import Pass
from midepoch.errors import DataFormatError, SchemaMismatchError
from midepoch.extending import FrontDoor
from midepoch.formats import file_suffixes
from midepoch.integrations.huggingface import from_hf
from midepoch.integrations.multimodal_messages import Messages
from midepoch.integrations.structured import own_shard
from midepoch.stages.pack.documents import IGNORED, is_token_mask
from midepoch.stages.pack.windows import PackWindows, Strategy
from midepoch.stages.skip import SkipErrors, SkipLimit, SkipLog
from midepoch.storage.listing import find
from midepoch.storage.named_files import MAX_FILE_BYTES, NamedFiles
from midepoch.values.columns import torch_module
from midepoch.values.convert import join_others

log = logging.getLogger("midepoch")

Folder = str | os.PathLike[str] | None
COLUMNS = {"messages": "messages", "image": "images", "audio": "audios", "video": "videos"}
"""The default columns. Only the one of messages must exist."""
FILLERS = {"labels": IGNORED, "document_ids": -1}
PER_TOKEN = ("labels", "position_ids", "document_ids", "token_type_ids")


class MultiModalIterableDataset(FrontDoor):
    """Samples that a processor makes of rows with chat messages, one by one or packed to a token budget.

        dataset = MultiModalIterableDataset("chats.jsonl", processor=tokenize, data_folder="images", packing=True)

    The processor gets one dict: the row's messages, with every file in them decoded in place; the lists "images",
    "audios" and "videos"; and the row's other columns. It returns a dict of arrays with ``input_ids``. Every sample
    must have the same keys, with None for a value that it does not have.
    """

    def __init__(
        self,
        source: Any,
        *,
        processor: Callable[..., Any],
        with_rng: bool = False,
        data_folder: Folder | Mapping[str, Folder] = None,
        allow_urls: Iterable[str] = (),
        max_file_bytes: Size = MAX_FILE_BYTES,
        messages_column: str = COLUMNS["messages"],
        image_column: str = COLUMNS["image"],
        audio_column: str = COLUMNS["audio"],
        video_column: str = COLUMNS["video"],
        video_frames: int | None = None,
        packing: bool = False,
        packing_strategy: Strategy | None = None,
        packing_length: int = 32000,
        packing_window: int = 256,
        filter_overlong: bool = True,
        shuffle: bool = True,
        shuffle_seed: int = 42,
        data_seed: int | None = None,
        on_error: Literal["raise", "skip"] = "raise",
        max_skipped: int | float | None = None,
        storage_options: Mapping[str, Any] | None = None,
        trust_shared: bool = False,
        num_ranks: int | None = None,
        rank: int | None = None,
    ) -> None:
        """Open ``source``: what :func:`midepoch.read` takes, a midepoch dataset, or a ``datasets.Dataset``.

        ``processor`` is called with one dict for each row, and returns a sample: see above.

        Files are decoded in the process that reads the row, and only if the row is used. Rows may name regular files
        in ``data_folder``, which can be the URL of an object store, and URLs of the origins in ``allow_urls``, such as
        "https://example.com". Each has at most ``max_file_bytes``. If ``source`` is a list of paths, ``data_folder``
        may be a dict with a folder, or None, for each of them. ``storage_options`` go to the origins of the source and
        of the folder, to no other. ``trust_shared``, for paths, is that of :func:`midepoch.read`.

        ``messages_column`` names the column of messages, by default "messages". ``image_column``, ``audio_column``
        and ``video_column``, by default "images", "audios" and "videos", name those of the files that messages refer to
        in order; a default one need not exist. ``video_frames`` evenly spaced frames of a video are decoded; by default
        all. With ``with_rng=True`` the processor also gets a NumPy generator that depends only on seed, epoch and row.

        ``shuffle`` permutes blocks and rows with ``shuffle_seed``, as :meth:`midepoch.Dataset.shuffle` does.
        ``data_seed`` is another name for the seed.

        Every rank reads its own shard. ``rank`` and ``num_ranks`` come by default from ``torch.distributed`` or the
        launcher's environment. A source that is sharded keeps its shard, and a later :meth:`midepoch.Dataset.shard`
        replaces the one of the launcher.

        ``packing=True`` packs samples to ``packing_length`` tokens by ``packing_strategy``, "first_fit" by default,
        inside windows of ``packing_window`` samples. Arrays that are not per token, such as pixel values, are
        concatenated in the order of the samples. ``filter_overlong`` drops samples that are too long; otherwise each
        gets a longer pack.

        ``on_error="skip"`` leaves out samples that cannot be decoded or processed; :meth:`metrics` reports them. More
        than ``max_skipped`` of them in what is read of a lane raise :class:`midepoch.TooManySkippedError`: an integer
        is a number of samples, a float a share, of at least 1,000 samples. By default an epoch in which all are skipped
        raises, at the latest when the first 1,000 that are read of a lane are. 1.0 allows that too. A survey counts
        what is left, so there is no limit after it.
        """
        check_choice("on_error", on_error, ("raise", "skip"))
        if max_skipped is not None and on_error != "skip":
            raise ValueError(f"max_skipped is {max_skipped!r}, but nothing is skipped: pass on_error='skip' with it.")
        if not callable(processor):
            raise TypeError(f"processor must be a function of a sample, got {processor!r}.")
        if data_seed is not None and shuffle_seed not in (42, data_seed):
            raise ValueError(f"shuffle_seed is {shuffle_seed!r} and data_seed is {data_seed!r}. Pass one of them.")
        limit, seed = SkipLimit(max_skipped), shuffle_seed if data_seed is None else data_seed
        check_integer("shuffle_seed", seed, least=None)
        frames = None if video_frames is None else check_integer("video_frames", video_frames, least=1)
        rows, of_lines = _open_rows(source, storage_options, check_trust(trust_shared))
        media = {"image": image_column, "audio": audio_column, "video": video_column}
        columns = {**media, "messages": messages_column}  # the order that states know
        if not of_lines:
            _check_columns(rows, columns)

        first_rows: list[int] = []
        if isinstance(data_folder, Mapping):
            folders = _folders_of_files(rows, data_folder, storage_options, "lines" if of_lines else None)
            first_rows = file_rows(rows, "data_folder").index.view.file_starts[:-1].tolist()
        else:
            folders = [data_folder]
        sources = source if isinstance(source, list | tuple) else [source]
        own_origins = [os.fspath(one) for one in sources if isinstance(one, str | os.PathLike)]
        files = {
            folder: NamedFiles(
                folder,
                allow_urls=allow_urls,
                max_file_bytes=max_file_bytes,
                storage_options=storage_options,
                options_for=own_origins,
            )
            for folder in folders
        }
        function = Messages(
            processor=processor,
            column=messages_column,
            media_columns=media,
            files=[files[folder] for folder in folders],
            first_rows=first_rows,
            video_frames=frames,
            of_lines=of_lines,
        )
        rows = _shuffled(rows, seed) if shuffle else rows
        if plan_of(rows).pipeline.item_spec[0] != "python":
            rows = rows.with_format("python")
        call = plan_of(rows).pipeline.call("process", function, with_rng=with_rng, with_indices=bool(first_rows))
        changed = {f"{kind}_column": name for kind, name in columns.items() if name != COLUMNS[kind]}
        skip_log = SkipLog() if on_error == "skip" else None
        process = SkipErrors(call=call, limit=limit, skip_log=skip_log, parameters={**changed, "video_frames": frames})
        samples = with_stage(rows, process)
        if packing:
            samples = samples.pack(
                packing_length,
                strategy=packing_strategy or "first_fit",
                window=packing_window,
                overlong="drop" if filter_overlong else "alone",
                others="join",
            )
        super().__init__(plan_of(own_shard(samples, rank, num_ranks)))

    def metrics(self) -> dict[str, Any]:
        """The number of samples left out so far by all workers on this machine.

            print(dataset.metrics()["skipped"])

        "skipped_samples" has each of them, with epoch, row and error.
        """
        process = plan_of(self).pipeline.find(SkipErrors)
        lines = [] if process is None or process.skip_log is None else process.skip_log.lines()
        return {"skipped": len(lines), "skipped_samples": lines}

    def own_keys(self, run: Pass) -> dict[str, Any]:
        """The next row of the next lane.

        ``cur_idx`` is the position in that lane of the next sample; None if all is delivered. With packing it advances
        by 1 with each pack of a window, and to the start of the next window after the last one. ``packer`` has the
        start of the window, from which a resume reads, and the number of its packs that were delivered; None without
        packing.
        """
        lane, cursor = run.progress().upcoming() or (None, None)
        position = None if cursor is None else cursor[0]
        packer = None
        pipeline = plan_of(self).pipeline
        if pipeline.find(PackWindows) is not None:
            delivered = 0 if cursor is None else cursor[len(pipeline.source.begin)]
            packer = {"lane": lane, "window_start": position, "delivered": delivered}
            position = None if position is None else position + delivered
        return {"cur_idx": position, "packer": packer}


def _open_rows(source: Any, storage_options: Mapping[str, Any] | None, trust_shared: bool) -> tuple[Dataset, bool]:
    """The rows of a source, and True if each row is a line of JSON text."""
    is_open = isinstance(source, Dataset)
    if is_open or hasattr(source, "cache_files") or hasattr(source, "features"):
        if trust_shared:
            raise ValueError("trust_shared=True is for paths, and this source is open already. Pass it to read.")
        return (source if is_open else from_hf(source)), False
    try:
        return ReadOptions(storage_options=storage_options, trust_shared=trust_shared).open(source), False
    except DataFormatError as error:
        # Arrow has no type for a content that is text in one message and a list of parts in another.
        options = ReadOptions(format="lines", storage_options=storage_options, trust_shared=trust_shared)
        try:
            lines = options.open(source)
        except DataFormatError:
            raise error from None
        log.info("JSON lines are parsed one by one: %s", error)
        return lines, True


def _check_columns(rows: Dataset, columns: Mapping[str, str]) -> None:
    """Raise if a column that must exist does not, as far as the columns are known."""
    schema = plan_of(rows).pipeline.schema
    for kind, name in columns.items():
        needed = kind == "messages" or name != COLUMNS[kind]
        if schema is not None and needed and name not in schema.names:
            raise SchemaMismatchError(
                f"There is no column {name!r} for {kind}_column. There are: {', '.join(schema.names)}."
            )


def _shuffled(rows: Dataset, seed: int) -> Dataset:
    try:
        return rows.shuffle(seed, level="block")
    except (ValueError, TypeError) as error:
        error.add_note("midepoch: MultiModalIterableDataset shuffles its source; pass shuffle=False to keep its order.")
        raise


def _folders_of_files(
    rows: Dataset, folders: Mapping[Any, Folder], storage_options: Mapping[str, Any] | None, format: str | None
) -> list[Folder]:
    """The folder of each file of the source, from those of the paths that ``data_folder`` names."""
    view = file_rows(rows, "data_folder").index.view
    owners: dict[str, Folder] = {}
    for path, folder in folders.items():
        listing = find(path, storage_options, suffixes=file_suffixes(format))
        owners |= dict.fromkeys(_paths(listing.root, listing.names), folder)
    files = _paths(view.root, view.names)
    if missing := [file for file in files if file not in owners]:
        raise ValueError(
            f"data_folder has no folder for {missing[0]!r}. Its keys must be the sources. The folder may be None for "
            "rows that name no files."
        )
    return [owners[file] for file in files]


def _paths(root: str, names: Sequence[str]) -> list[str]:
    return [f"{root.rstrip('/')}/{name}" for name in names]


@dataclass(frozen=True, kw_only=True)
class MultiModalCollator:
    """A ``collate_fn``: samples or packs in, a dict of tensors out.

        loader = midepoch.Loader(dataset, batch_size=8, collate_fn=MultiModalCollator(padding="right", pad=0))

    ``padding="flatten"`` concatenates all tokens to one row, with ``position_ids``, ``document_ids`` and ``cu_seqlens``
    for attention inside each document. "right" and "left" pad every sample to the longest: tokens with ``pad``, labels
    with -100, masks with 0; and add an ``attention_mask``. ``column`` is the column of tokens, which every sample must
    have. Integers become int64.

    Values that are not per token are joined. Arrays (pixel values, grids) are concatenated along their first axis,
    without the samples that have None; numbers become a tensor; any other values become a list.
    """

    padding: Literal["flatten", "right", "left"] = "right"
    pad: int = 0
    column: str = "input_ids"

    def __post_init__(self) -> None:
        check_choice("padding", self.padding, ("flatten", "right", "left"))
        _ = torch_module()

    def __call__(self, items: Sequence[Mapping[str, Any]] | Mapping[str, Any]) -> dict[str, Any]:
        """The batch of several samples, or of a single one."""
        items = [items] if isinstance(items, Mapping) else items
        self._check(items)
        names = list(items[0])
        per_token = [
            name for name in names if self._is_per_token(name) and any(item[name] is not None for item in items)
        ]
        columns = {name: [self._tokens(name, item) for item in items] for name in per_token}
        ends = [
            np.asarray(item["cu_seqlens"]) if "cu_seqlens" in item else np.array([0, len(tokens)])
            for item, tokens in zip(items, columns[self.column], strict=True)
        ]
        batch = self._flat(columns, ends) if self.padding == "flatten" else self._padded(columns, ends)
        tensors = {name: torch_module().from_numpy(values) for name, values in batch.items()}
        others = [name for name in names if name not in (*per_token, "cu_seqlens")]
        return {**tensors, **{name: _joined(name, [item[name] for item in items]) for name in others}}

    def _check(self, items: Sequence[Mapping[str, Any]]) -> None:
        for item in items:
            if not isinstance(item, Mapping) or item.get(self.column) is None:
                facts = f"it has: {', '.join(item)}" if isinstance(item, Mapping) else f"it is a {type(item).__name__}"
                raise ValueError(f"A sample has no {self.column!r}; {facts}.")
            if set(item) != set(items[0]):
                raise ValueError(
                    f"A batch needs samples with the same keys, but one has {list(items[0])} and another {list(item)}. "
                    "Let the processor return the same keys for every sample, with None for a missing value."
                )

    def _is_per_token(self, name: str) -> bool:
        return name == self.column or name in PER_TOKEN or is_token_mask(name)

    def _tokens(self, name: str, item: Mapping[str, Any]) -> Any:
        """A column's values, one per token, as an array."""
        length = len(item[self.column])
        if item[name] is None:
            raise ValueError(
                f"{name} is None in one sample of a batch and not in others. It has a value per token, so all samples "
                "need it."
            )
        values = np.asarray(item[name])
        if values.ndim != 1:
            raise ValueError(
                f"{name} is an array of {values.ndim} dimensions; it must have one, with a value per token. If the "
                "processor returns batches of one sample, take [0]."
            )
        if len(values) != length:
            raise ValueError(
                f"{name} has {count('value', len(values))} and {self.column} has {length:,}; it must have as many."
            )
        return values.astype(np.int64) if values.dtype.kind in "iu" or not length else values

    def _flat(self, columns: dict[str, list[Any]], ends: Sequence[Any]) -> dict[str, Any]:
        """All tokens in one row, without the padding of packs."""
        sizes = np.concatenate([np.diff(bounds) for bounds in ends]).astype(np.int64)
        bounds = np.concatenate([[0], np.cumsum(sizes)])
        flat = {
            name: np.concatenate([values[: end[-1]] for values, end in zip(column, ends, strict=True)])[None]
            for name, column in columns.items()
        }
        flat["position_ids"] = (np.arange(bounds[-1]) - np.repeat(bounds[:-1], sizes))[None]
        flat["document_ids"] = np.repeat(np.arange(len(sizes)), sizes)[None]
        return flat | {"cu_seqlens": bounds.astype(np.int32), "max_seqlen": np.array(sizes.max(initial=0), np.int32)}

    def _padded(self, columns: dict[str, list[Any]], ends: Sequence[Any]) -> dict[str, Any]:
        """One row per sample, padded to the longest."""
        longest = max(map(len, columns[self.column]))
        masks = [
            (np.arange(len(row)) < end[-1]).astype(np.int64)
            for row, end in zip(columns[self.column], ends, strict=True)
        ]
        padded = {}
        for name, rows in ({"attention_mask": masks} | columns).items():
            filler = self.pad if name == self.column else FILLERS.get(name, 0)
            table = np.full((len(rows), longest), filler, np.result_type(*rows))
            for number, row in enumerate(rows):
                start = longest - len(row) if self.padding == "left" else 0
                table[number, start : start + len(row)] = row
            padded[name] = table
        return padded


def _joined(name: str, values: Sequence[Any]) -> Any:
    """Numbers as a tensor, arrays concatenated, any other values as a list; None if no sample has a value."""
    if all(isinstance(value, bool | int | float | np.generic) for value in values):
        return torch_module().as_tensor(np.array(values))
    return join_others(name, values, "torch")
