"""The options of MultiModalIterableDataset, and the samples that come of them.

The class spells all options out in its signature, for users and editors. A test compares it with the fields below.
"""

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self

from midepoch._common.checks import Size, check_integer
from midepoch._common.files import check_trust
from midepoch.dataset import Dataset
from midepoch.dataset.reading import read
from midepoch.errors import DataFormatError, SchemaMismatchError
from midepoch.integrations.huggingface.dataset import from_hf
from midepoch.integrations.multimodal.folders import BySource, Folder, by_source, folders_of
from midepoch.integrations.multimodal.messages import Messages
from midepoch.stages.pack.strategies import Strategy
from midepoch.stages.skip import SkipErrors, SkipLimit, SkipLog
from midepoch.storage.named_files import MAX_FILE_BYTES, NamedFiles

log = logging.getLogger("midepoch")

OnError = Literal["raise", "skip"]
COLUMNS = {"messages": "messages", "image": "images", "audio": "audios", "video": "videos"}
"""The default columns. Only the one of messages must exist."""


@dataclass(frozen=True, kw_only=True)
class MultiModalOptions:
    """How samples are made of rows with chat messages. Wrong values raise when this is built."""

    processor: Callable[..., Any]
    with_rng: bool = False
    data_folder: Folder | Mapping[str, Folder] = None
    allow_urls: Iterable[str] = ()
    max_file_bytes: Size = MAX_FILE_BYTES
    messages_column: str = COLUMNS["messages"]
    image_column: str = COLUMNS["image"]
    audio_column: str = COLUMNS["audio"]
    video_column: str = COLUMNS["video"]
    video_frames: int | None = None
    packing: bool = False
    packing_strategy: Strategy | None = None
    packing_length: int = 32000
    packing_window: int = 256
    filter_overlong: bool = True
    shuffle: bool = True
    shuffle_seed: int = 42
    data_seed: int | None = None
    on_error: OnError = "raise"
    max_skipped: int | float | None = None
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    trust_shared: bool = False
    num_ranks: int | None = None
    rank: int | None = None

    def __post_init__(self) -> None:
        if self.on_error not in ("raise", "skip"):
            raise ValueError(f"on_error is {self.on_error!r}; it can be 'raise' or 'skip'.")
        SkipLimit(self.max_skipped)
        if self.max_skipped is not None and self.on_error != "skip":
            raise ValueError(
                f"max_skipped is {self.max_skipped!r}, but nothing is skipped: pass on_error='skip' with it."
            )
        if not callable(self.processor):
            raise TypeError(f"processor must be a function of a sample, got {self.processor!r}.")
        if self.data_seed is not None and self.shuffle_seed not in (42, self.data_seed):
            raise ValueError(
                f"shuffle_seed is {self.shuffle_seed!r} and data_seed is {self.data_seed!r}. Pass one of them."
            )
        _ = self.seed
        if (self.rank is None) != (self.num_ranks is None):
            raise ValueError(f"rank is {self.rank!r} and num_ranks is {self.num_ranks!r}; pass both, or neither.")
        _ = self.frames
        check_trust(self.trust_shared)

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Self:
        """The options among the arguments of a call."""
        return cls(**{option.name: arguments[option.name] for option in fields(cls)})

    @property
    def seed(self) -> int:
        """The seed of the shuffle."""
        return check_integer(
            "shuffle_seed", self.shuffle_seed if self.data_seed is None else self.data_seed, least=None
        )

    @property
    def frames(self) -> int | None:
        """How many frames of a video are decoded; None for all."""
        return None if self.video_frames is None else check_integer("video_frames", self.video_frames, least=1)

    @property
    def media_columns(self) -> dict[str, str]:
        """The columns of files, by the kind of the files."""
        return {"image": self.image_column, "audio": self.audio_column, "video": self.video_column}

    def samples(self, source: Any) -> Dataset:
        """The samples of a source, shuffled, packed and sharded as far as asked for."""
        folders = folders_of(source, self.data_folder) if isinstance(self.data_folder, Mapping) else None
        rows, of_lines = _open_rows(source, storage_options=self.storage_options, trust_shared=self.trust_shared)
        if not of_lines:
            _check_columns(rows, {"messages": self.messages_column, **self.media_columns})
        function = self._function(source, rows, folders, of_lines)
        rows = _as_python(_shuffled(rows, self.seed) if self.shuffle else rows)
        columns = {**self.media_columns, "messages": self.messages_column}  # the order that states know
        changed = {f"{kind}_column": name for kind, name in columns.items() if name != COLUMNS[kind]}
        process = SkipErrors(
            call=rows.plan.pipeline.call("process", function, with_rng=self.with_rng, with_indices=folders is not None),
            limit=SkipLimit(self.max_skipped),
            skip_log=SkipLog() if self.on_error == "skip" else None,
            parameters={**changed, "video_frames": self.frames},
        )
        samples = rows.with_stage(process)
        if self.packing:
            samples = samples.pack(
                self.packing_length,
                strategy=self.packing_strategy or "first_fit",
                window=self.packing_window,
                overlong="drop" if self.filter_overlong else "alone",
                others="join",
            )
        return samples.with_launched_shard() if self.rank is None else samples.shard(self.num_ranks, self.rank)

    def _function(
        self, source: Any, rows: Dataset, folders: Mapping[str, Folder] | None, of_lines: bool
    ) -> Messages | BySource:
        """What makes samples of rows, whose files are in one folder, or in one for each path of the source."""

        def messages_in(folder: Any) -> Messages:
            return Messages(
                processor=self.processor,
                column=self.messages_column,
                media_columns=self.media_columns,
                files=NamedFiles(
                    folder,
                    allow_urls=self.allow_urls,
                    max_file_bytes=self.max_file_bytes,
                    storage_options=self.storage_options,
                    options_for=_named_by(source),
                ),
                video_frames=self.frames,
                of_lines=of_lines,
            )

        if folders is None:
            return messages_in(self.data_folder)
        functions = {one: messages_in(folder) for one, folder in folders.items()}
        return by_source(rows, functions, self.storage_options, "lines" if of_lines else None)


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
