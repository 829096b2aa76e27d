"""MultiModalIterableDataset: chats with images, audio and video, through a user's processor, optionally packed."""

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, cast

from midepoch._common.checks import Size, check_integer
from midepoch._common.trust import check_trust
from midepoch.dataset import Dataset
from midepoch.delivery.passes import Pass
from midepoch.errors import DataFormatError, SchemaMismatchError
from midepoch.integrations.front_door import FrontDoor
from midepoch.integrations.huggingface.dataset import from_hf
from midepoch.integrations.multimodal.folders import BySource, Folder, by_source, folders_of
from midepoch.integrations.multimodal.messages import Messages
from midepoch.reading import read
from midepoch.stages.pack.stage import PackWindows
from midepoch.stages.pack.strategies import Strategy
from midepoch.stages.skip_errors import SkipErrors, SkipLog
from midepoch.stages.skip_limit import SkipLimit
from midepoch.stages.skipped import delivered_of
from midepoch.storage.named_files import MAX_FILE_BYTES, NamedFiles

log = logging.getLogger("midepoch")

OnError = Literal["raise", "skip"]
COLUMNS = {"messages": "messages", "image": "images", "audio": "audios", "video": "videos"}
"""The default columns. Only the one of messages must exist."""


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
        on_error: OnError = "raise",
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
        if on_error not in ("raise", "skip"):
            raise ValueError(f"on_error is {on_error!r}; it can be 'raise' or 'skip'.")
        limit = SkipLimit(max_skipped)
        if max_skipped is not None and on_error != "skip":
            raise ValueError(f"max_skipped is {max_skipped!r}, but nothing is skipped: pass on_error='skip' with it.")
        if not callable(processor):
            raise TypeError(f"processor must be a function of a sample, got {processor!r}.")
        if data_seed is not None and shuffle_seed not in (42, data_seed):
            raise ValueError(f"shuffle_seed is {shuffle_seed!r} and data_seed is {data_seed!r}. Pass one of them.")
        seed = check_integer("shuffle_seed", shuffle_seed if data_seed is None else data_seed, least=None)
        if (rank is None) != (num_ranks is None):
            raise ValueError(f"rank is {rank!r} and num_ranks is {num_ranks!r}; pass both, or neither.")
        columns = {"image": image_column, "audio": audio_column, "video": video_column}
        folders = folders_of(source, data_folder) if isinstance(data_folder, Mapping) else None
        rows, of_lines = _open_rows(source, storage_options=storage_options, trust_shared=check_trust(trust_shared))
        if not of_lines:
            _check_columns(rows, {"messages": messages_column, **columns})
        frames = None if video_frames is None else check_integer("video_frames", video_frames, least=1)

        def messages_in(folder: Folder) -> Messages:
            return Messages(
                processor=processor,
                column=messages_column,
                media_columns=columns,
                files=NamedFiles(
                    folder,
                    allow_urls=allow_urls,
                    max_file_bytes=max_file_bytes,
                    storage_options=storage_options,
                    options_for=_named_by(source),
                ),
                video_frames=frames,
                of_lines=of_lines,
            )

        function: Messages | BySource
        if folders is None:
            function = messages_in(cast("Folder", data_folder))
        else:
            functions = {one: messages_in(folder) for one, folder in folders.items()}
            function = by_source(rows, functions, storage_options, "lines" if of_lines else None)
        parameters = {f"{kind}_column": name for kind, name in columns.items() if name != COLUMNS[kind]}
        if messages_column != COLUMNS["messages"]:
            parameters["messages_column"] = messages_column
        rows = _as_python(_shuffled(rows, seed) if shuffle else rows)
        process = SkipErrors(
            call=rows.plan.pipeline.call("process", function, with_rng=with_rng, with_indices=folders is not None),
            limit=limit,
            skip_log=SkipLog() if on_error == "skip" else None,
            parameters={**parameters, "video_frames": frames},
        )
        samples = rows.with_stage(process)
        if packing:
            samples = samples.pack(
                packing_length,
                strategy=packing_strategy or "first_fit",
                window=packing_window,
                overlong="drop" if filter_overlong else "alone",
                others="join",
            )
        super().__init__((samples.with_launched_shard() if rank is None else samples.shard(num_ranks, rank)).plan)

    def metrics(self) -> dict[str, Any]:
        """The number of samples left out so far by all workers on this machine.

            print(dataset.metrics()["skipped"])

        "skipped_samples" has each of them, with epoch, row and error.
        """
        process = self.plan.pipeline.find(SkipErrors)
        lines = [] if process is None or process.skip_log is None else process.skip_log.lines()
        return {"skipped": len(lines), "skipped_samples": lines}

    def describe_state(self, run: Pass) -> dict[str, Any]:
        """What the loop has received, with the next row of the next lane.

        ``cur_idx`` is the position in that lane of the next sample; None if all is delivered. With packing it advances
        by 1 with each pack of a window, and to the start of the next window after the last one. ``packer`` has the
        start of the window, from which a resume reads, and the number of its packs that were delivered; None without
        packing.
        """
        state = super().describe_state(run)
        progress = run.progress()
        lane, cursor = progress.upcoming() or (None, None)
        position = None if cursor is None else cursor[0]
        packer = None
        if self.plan.pipeline.find(PackWindows) is not None:
            delivered = 0 if cursor is None else delivered_of(cursor[-1])
            packer = {"lane": lane, "window_start": position, "delivered": delivered}
            position = None if position is None else position + delivered
        return {**state, "cur_idx": position, "packer": packer}


def _named_by(source: Any) -> list[str]:
    """The paths and URLs that a source names; none if it is open already."""
    sources = source if isinstance(source, list | tuple) else [source]
    return [os.fspath(one) for one in sources if isinstance(one, str | os.PathLike)]


def _open_rows(source: Any, **options: Any) -> tuple[Dataset, bool]:
    """The rows of a source, and True if each row is a line of JSON text."""
    is_open = isinstance(source, Dataset)
    if is_open or hasattr(source, "cache_files") or hasattr(source, "features"):
        if options["trust_shared"]:
            raise ValueError("trust_shared=True is for paths, and this source is open already. Pass it to read.")
        return (source if is_open else from_hf(source)), False
    try:
        return read(source, **options), False
    except DataFormatError as error:
        # Arrow has no type for a content that is text in one message and a list of parts in another.
        try:
            lines = read(source, format="lines", **options)
        except DataFormatError:
            raise error from None
        log.info("JSON lines are parsed one by one: %s", error)
        return lines, True


def _check_columns(rows: Dataset, columns: Mapping[str, str]) -> None:
    """Raise if a column that must exist does not, as far as the columns are known."""
    schema = rows.plan.pipeline.schema
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


def _as_python(rows: Dataset) -> Dataset:
    """The rows as dicts of Python values."""
    form, _ = rows.plan.pipeline.item_spec
    return rows if form == "python" else rows.with_format("python")
