"""Rows with chat messages, images, sounds and videos, through a user's processor, and packed if asked."""

import os
from collections.abc import Callable, Mapping
from typing import Any, Literal

from midepoch.dataset import Dataset, read
from midepoch.front.huggingface import from_hf
from midepoch.front.messages import Messages
from midepoch.packing import Strategy
from midepoch.position import whole_number
from midepoch.stages.attempt import Attempt, SkipLog
from midepoch.stages.stage import Call

OnError = Literal["raise", "skip"]


class MultiModalIterableDataset(Dataset):
    """Samples that a processor makes of rows with messages, one by one or packed to a token budget.

    ``source`` is what :func:`midepoch.read` takes, a midepoch data set, or a ``datasets.Dataset``. ``processor`` gets a
    dict with the row's messages (each part's file decoded in place), lists "images", "audios" and "videos", and the
    row's other columns, and returns a dict of arrays with ``input_ids``: the same keys for every sample, None where one
    has nothing. Files are decoded in the process that reads, for rows that are used only; paths are looked for below
    ``data_folder``, which may be the URL of an object store.

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
        processor: Callable[[dict[str, Any]], Any],
        data_folder: str | os.PathLike[str] | None = None,
        messages_column: str = "messages",
        image_column: str = "images",
        audio_column: str = "audios",
        video_column: str = "videos",
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
        rows = _opened(source, storage_options)
        if shuffle:
            rows = rows.shuffle(data_seed)
        function = Messages(
            processor=processor,
            column=messages_column,
            media_columns={"image": image_column, "audio": audio_column, "video": video_column},
            data_folder=None if data_folder is None else os.fspath(data_folder),
            storage_options=storage_options,
            video_frames=None if video_frames is None else whole_number("video_frames", video_frames, least=1),
        )
        number = len(rows._plan.pipeline.stages) + 1
        call = Call(function=function, stage="process", number=number)
        samples = rows._staged(Attempt(call=call, skips=SkipLog() if on_error == "skip" else None))
        if packing:
            samples = samples.pack(
                packing_length,
                strategy=packing_strategy,
                window=packing_window,
                overlong="drop" if filter_overlong else "alone",
                others="join",
            )
        super().__init__(samples._plan)

    def metrics(self) -> dict[str, Any]:
        """How many samples were left out so far, by any worker on this machine, and which: epoch, row and error."""
        logs = [stage.skips for stage in self._plan.pipeline.stages if isinstance(stage, Attempt) and stage.skips]
        lines = [line for log in logs for line in log.lines()]
        return {"skipped": len(lines), "skipped_samples": lines}

    def state_dict(self) -> dict[str, Any]:
        """Where the data set stands; ``cur_idx`` and ``packer`` tell it in plain terms.

        ``cur_idx`` is the position, in the lane that is due next, of the row at which reading goes on. ``packer`` says
        how many packs of the window that begins there were delivered.
        """
        state = super().state_dict()
        progress = self._position.progress(self._plan)
        due = progress.upcoming()
        lane, position = (None, None) if due is None else due
        delivered = 0 if lane is None else sum(progress.cursors[progress.rotation.index(lane)][1:])
        return {
            **state,
            "cur_idx": position,
            "packer": {"lane": lane, "window_start": position, "delivered": delivered},
        }


def _opened(source: Any, storage_options: Mapping[str, Any] | None) -> Dataset:
    if isinstance(source, Dataset):
        return source
    if hasattr(source, "cache_files"):
        return from_hf(source)
    return read(source)
