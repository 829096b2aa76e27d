"""Chat messages with images, sounds and videos in them: read from a row, with every file that they name decoded.

A message's content is text, or a list of parts as the OpenAI API has them. A part names its file itself (a path, a data
URL, bytes), or stands for the next one of the row's column of that kind.
"""

import base64
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from midepoch.media import image, sound, video
from midepoch.storage import read_bytes

KINDS = {
    "image": "image",
    "image_url": "image",
    "input_image": "image",
    "audio": "audio",
    "audio_url": "audio",
    "input_audio": "audio",
    "video": "video",
    "video_url": "video",
}
DATA_URL = re.compile(r"data:[^,]*;base64,(?P<data>.*)", re.DOTALL)
URL = re.compile(r"[a-z][a-z0-9+.-]+://")


@dataclass(frozen=True, kw_only=True)
class Messages:
    """A function of rows: a row's messages, with its images, sounds and videos, handed to the user's processor."""

    processor: Callable[[dict[str, Any]], Any]
    column: str
    media_columns: Mapping[str, str]
    """For each kind the column that holds files of it."""
    data_folder: str | None = None
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    video_frames: int | None = None

    @property
    def __wrapped__(self) -> Callable[[dict[str, Any]], Any]:
        """The processor, by whose name a checkpoint knows this function."""
        return self.processor

    def __call__(self, row: Mapping[str, Any]) -> Any:
        """What the processor makes of a row."""
        return self.processor(self.sample(row))

    def sample(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The row with plain messages and lists of decoded "images", "audios" and "videos", in the messages' order."""
        if self.column not in row:
            raise ValueError(f"There is no column {self.column!r} with messages; the row has: {', '.join(row)}.")
        waiting = {kind: iter(self._stored(row.get(column))) for kind, column in self.media_columns.items()}
        found: dict[str, list[Any]] = {kind: [] for kind in self.media_columns}
        messages = [self._message(message, waiting, found) for message in _parsed(row[self.column])]
        for kind, rest in waiting.items():  # files that no part stands for belong to the sample all the same
            found[kind] += [self._decoded(kind, value) for value in rest]
        others = {name: value for name, value in row.items() if name not in self.media_columns.values()}
        return {**others, self.column: messages, **{f"{kind}s": values for kind, values in found.items()}}

    def _stored(self, value: Any) -> Iterator[Any]:
        """The files in a row's column: one, or a list of them."""
        if value is None:
            return
        if isinstance(value, list | tuple):
            yield from value
        else:
            yield value

    def _message(
        self, message: Any, waiting: Mapping[str, Iterator[Any]], found: Mapping[str, list[Any]]
    ) -> dict[str, Any]:
        if not isinstance(message, Mapping) or "role" not in message:
            raise ValueError(f"A message is a dict with a role and a content, got {_short(message)}.")
        plain = {name: value for name, value in message.items() if value is not None}
        content = plain.get("content", "")
        if isinstance(content, str):
            return plain
        if not isinstance(content, Sequence):
            raise ValueError(f"A message's content is text or a list of parts, got {_short(content)}.")
        return {**plain, "content": [self._part(part, waiting, found) for part in content]}

    def _part(self, part: Any, waiting: Mapping[str, Iterator[Any]], found: Mapping[str, list[Any]]) -> dict[str, Any]:
        if isinstance(part, str):
            return {"type": "text", "text": part}
        if not isinstance(part, Mapping):
            raise ValueError(f"A part of a message is text or a dict with a type, got {_short(part)}.")
        plain = {name: value for name, value in part.items() if value is not None}
        kind = KINDS.get(plain.get("type", "text"))
        if kind is None:
            if plain.get("type", "text") == "text":
                return {"type": "text", **plain}
            raise ValueError(f"A part of a message has the type {plain['type']!r}; it can be text, {', '.join(KINDS)}.")
        value = _named(plain)
        if value is None:
            value = next(waiting[kind], None)
            if value is None:
                raise ValueError(
                    f"A message has more {kind} parts than the column {self.media_columns[kind]!r} has {kind}s."
                )
        decoded = self._decoded(kind, value)
        found[kind].append(decoded)
        return {"type": kind, kind: decoded}

    def _decoded(self, kind: str, value: Any) -> Any:
        """A file's content, from wherever it is."""
        if isinstance(value, Mapping):
            value = value["bytes"] if value.get("bytes") is not None else value.get("path")
        if isinstance(value, str):
            value = self._fetched(value)
        if kind == "image":
            return image(value)
        return sound(value) if kind == "audio" else video(value, frames=self.video_frames)

    def _fetched(self, name: str) -> bytes:
        match = DATA_URL.fullmatch(name)
        if match:
            return base64.b64decode(match["data"], validate=True)
        name = name.removeprefix("file://")
        if URL.match(name) or os.path.isabs(name) or self.data_folder is None:
            return read_bytes(name, self.storage_options)
        return read_bytes(f"{self.data_folder.rstrip('/')}/{name}", self.storage_options)


def _parsed(messages: Any) -> Sequence[Any]:
    """A row's messages: a list, or the JSON text of one."""
    if isinstance(messages, str):
        try:
            messages = json.loads(messages)
        except ValueError as error:
            raise ValueError(f"The messages are text that is no JSON ({error}): {_short(messages)}.") from error
    if isinstance(messages, Mapping) and "messages" in messages:
        messages = messages["messages"]
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        raise ValueError(f"The messages must be a list of dicts, got {_short(messages)}.")
    return messages


def _named(part: Mapping[str, Any]) -> Any:
    """The file that a part names, if it does."""
    for name in part:
        value = part[name]
        if name in KINDS and isinstance(value, Mapping):
            if "data" in value:
                return base64.b64decode(value["data"], validate=True)
            return value.get("url") or value
        if name in KINDS or name in ("path", "url", "bytes"):
            return value
    return None


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
