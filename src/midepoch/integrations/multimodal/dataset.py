"""Rows with chat messages, images, sounds and videos, through a user's processor, and packed if asked."""

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, Literal

from midepoch._common.checks import check_integer
from midepoch.dataset import Dataset
from midepoch.errors import DataFormatError, SchemaMismatchError
from midepoch.integrations.huggingface.dataset import from_hf
from midepoch.integrations.multimodal.messages import Messages
from midepoch.reading import read
from midepoch.stages.pack.stage import PackWindows
from midepoch.stages.pack.strategies import Strategy
from midepoch.stages.skip_errors import SkipErrors, SkipLog
from midepoch.storage.location import SmallFiles

log = logging.getLogger("midepoch")

OnError = Literal["raise", "skip"]
COLUMNS = {"messages": "messages", "image": "images", "audio": "audios", "video": "videos"}
"""The columns that need not be named; those of files need not be there either."""


class MultiModalIterableDataset(Dataset):
    """Samples that a processor makes of rows with messages, one by one or packed to a token budget.

    ``source`` is what :func:`midepoch.read` takes, a midepoch data set, or a ``datasets.Dataset``. ``processor`` gets a
    dict with the row's messages (each part's file decoded in place), lists "images", "audios" and "videos", and the
    row's other columns, and returns a dict of arrays with ``input_ids``: the same keys for every sample, None where one
    has nothing. With ``with_rng=True`` it also gets a NumPy generator that depends on seed, epoch and row alone. Files
    are decoded in the process that reads, for rows that are used only; paths are looked for below ``data_folder``,
    which may be the URL of an object store. Of a video, ``video_frames`` are taken, evenly spaced, or all.

    With ``packing=True`` samples are packed to ``packing_length`` tokens by ``packing_strategy``, inside windows of
    ``packing_window`` samples, and arrays that do not run along the tokens, such as pixel values, are joined in the
    samples' order; ``filter_overlong`` leaves out samples that are longer, which are alone in a pack otherwise.
    ``on_error="skip"`` leaves out samples that cannot be decoded or processed, counts them, and tells where they are:
    see :meth:`metrics`.
    """

    def __init__(
        self,
        source: Any,
        *,
        processor: Callable[..., Any],
        with_rng: bool = False,
        data_folder: str | os.PathLike[str] | None = None,
        messages_column: str = COLUMNS["messages"],
        image_column: str = COLUMNS["image"],
        audio_column: str = COLUMNS["audio"],
        video_column: str = COLUMNS["video"],
        video_frames: int | None = None,
        packing: bool = False,
        packing_strategy: Strategy = "first_fit",
        packing_length: int = 32000,
        packing_window: int = 256,
        filter_overlong: bool = True,
        shuffle: bool = True,
        data_seed: int = 42,
        on_error: OnError = "raise",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if on_error not in ("raise", "skip"):
            raise ValueError(f"on_error is {on_error!r}; it can be 'raise' or 'skip'.")
        if not callable(processor):
            raise TypeError(f"processor must be a function of a sample, got {processor!r}.")
        columns = {"image": image_column, "audio": audio_column, "video": video_column}
        rows, of_lines = _opened(source, storage_options)
        if not of_lines:
            _check_columns(rows, {"messages": messages_column, **columns})
        function = Messages(
            processor=processor,
            column=messages_column,
            media_columns=columns,
            data_folder=None if data_folder is None else os.fspath(data_folder),
            files=SmallFiles(storage_options),
            video_frames=None if video_frames is None else check_integer("video_frames", video_frames, least=1),
            of_lines=of_lines,
        )
        parameters = {f"{kind}_column": name for kind, name in columns.items() if name != COLUMNS[kind]}
        if messages_column != COLUMNS["messages"]:
            parameters["messages_column"] = messages_column
        rows = _as_python(_shuffled(rows, data_seed) if shuffle else rows)
        process = SkipErrors(
            call=rows.plan.pipeline.call("process", function, with_rng=with_rng),
            skip_log=SkipLog() if on_error == "skip" else None,
            parameters={**parameters, "video_frames": function.video_frames},
        )
        samples = rows.with_stage(process)
        if packing:
            samples = samples.pack(
                packing_length,
                strategy=packing_strategy,
                window=packing_window,
                overlong="drop" if filter_overlong else "alone",
                others="join",
            )
        super().__init__(samples.plan)

    def metrics(self) -> dict[str, Any]:
        """How many samples were left out so far, by any worker on this machine, and which: epoch, row and error."""
        process = self.plan.pipeline.find(SkipErrors)
        lines = [] if process is None or process.skip_log is None else process.skip_log.lines()
        return {"skipped": len(lines), "skipped_samples": lines}

    def state_dict(self) -> dict[str, Any]:
        """Where the data set stands; ``cur_idx`` and ``packer`` tell it in plain terms.

        ``cur_idx`` is the position, in the lane that is due next, of the row at which reading goes on; None where all
        is delivered. ``packer`` says how many packs of the window that begins there were delivered; None without
        packing.
        """
        state = super().state_dict()
        progress = self.position.progress(self.plan)
        lane, position = progress.upcoming() or (None, None)
        packer = None
        if self.plan.pipeline.find(PackWindows) is not None:
            delivered = 0 if lane is None else progress.cursors[progress.rotation.index(lane)][-1]
            packer = {"lane": lane, "window_start": position, "delivered": delivered}
        return {**state, "cur_idx": position, "packer": packer}


def _opened(source: Any, storage_options: Mapping[str, Any] | None) -> tuple[Dataset, bool]:
    """The rows of a source, and whether each is a line of JSON as text."""
    if isinstance(source, Dataset):
        return source, False
    if hasattr(source, "cache_files") or hasattr(source, "features"):
        return from_hf(source), False
    try:
        return read(source, storage_options=storage_options), False
    except DataFormatError as error:
        # Contents that are text in one message and a list of parts in another have no type in Arrow.
        try:
            lines = read(source, format="lines", storage_options=storage_options)
        except DataFormatError:
            raise error from None
        log.info("JSON lines are parsed one by one: %s", error)
        return lines, True


def _check_columns(rows: Dataset, columns: Mapping[str, str]) -> None:
    """Raise if a column that must be there is not, where that is known."""
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
        error.add_note("midepoch: MultiModalIterableDataset shuffles its source; pass shuffle=False to leave it as is.")
        raise


def _as_python(rows: Dataset) -> Dataset:
    """The rows as dicts of Python values, which messages are read from."""
    form, _ = rows.plan.pipeline.item_spec
    return rows if form == "python" else rows.with_format("python")
