"""MultiModalIterableDataset: chats with images, audio and video, through a user's processor, optionally packed."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from midepoch._common.checks import Size
from midepoch.dataset.front_door import FrontDoor
from midepoch.delivery.passes import Pass
from midepoch.integrations.multimodal.folders import Folder
from midepoch.integrations.multimodal.options import COLUMNS, MultiModalOptions, OnError
from midepoch.stages.pack.strategies import Strategy
from midepoch.stages.pack.windows import PackWindows
from midepoch.stages.skip import SkipErrors
from midepoch.storage.named_files import MAX_FILE_BYTES


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
        options = MultiModalOptions.of(locals())
        super().__init__(options.samples(source).plan)

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
            delivered = 0 if cursor is None else cursor[len(self.plan.pipeline.source.begin)]
            packer = {"lane": lane, "window_start": position, "delivered": delivered}
            position = None if position is None else position + delivered
        return {**state, "cur_idx": position, "packer": packer}
