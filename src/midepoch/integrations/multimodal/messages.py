"""Chat messages with images, sounds and videos in them: read from a row, with every file that they name decoded.

A message's content is text, or a list of parts as the OpenAI API has them. A part names its file itself (a path, a data
URL, bytes), or stands for the next one of the row's column of that kind.
"""

import base64
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from midepoch.storage.location import SmallFiles
from midepoch.storage.urls import is_url
from midepoch.values.media import audio, image, video

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
TEXTS = ("text", "input_text", "output_text")
END = object()


@dataclass(frozen=True, kw_only=True)
class Messages:
    """A function of rows: a row's messages, with its images, sounds and videos, handed to the user's processor."""

    processor: Callable[..., Any]
    column: str
    media_columns: Mapping[str, str]
    """For each kind the column that holds files of it."""
    data_folder: str | None = None
    files: SmallFiles = field(default_factory=SmallFiles, repr=False)
    video_frames: int | None = None
    of_lines: bool = False
    """Whether a row is the text of a JSON object in a column "line"."""

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The processor, by whose name a checkpoint knows this function."""
        return self.processor

    def __call__(self, row: Mapping[str, Any], *rng: Any) -> Any:
        """What the processor makes of a row, maybe with a random generator."""
        return self.processor(self.sample(_object(row["line"]) if self.of_lines else row), *rng)

    def sample(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The row with plain messages and lists of decoded "images", "audios" and "videos", in the messages' order."""
        if self.column not in row:
            raise ValueError(f"There is no column {self.column!r} with messages; the row has: {', '.join(row)}.")
        waiting = {kind: _stored(row.get(column)) for kind, column in self.media_columns.items()}
        found: dict[str, list[Any]] = {kind: [] for kind in self.media_columns}
        messages = [self._message(message, waiting, found) for message in _parsed(row[self.column])]
        for kind, rest in waiting.items():  # files that no part stands for belong to the sample all the same
            found[kind] += [self._decoded(kind, value) for value in rest]
        others = {name: value for name, value in row.items() if name not in self.media_columns.values()}
        return {**others, self.column: messages, **{f"{kind}s": values for kind, values in found.items()}}

    def _message(
        self, message: Any, waiting: Mapping[str, Iterator[Any]], found: Mapping[str, list[Any]]
    ) -> dict[str, Any]:
        if not isinstance(message, Mapping) or message.get("role") is None:
            raise ValueError(f"A message is a dict with a role and a content, got {_short(message)}.")
        plain = _filled(message)
        content = plain.get("content", "")
        if isinstance(content, str):
            return plain
        if not isinstance(content, Sequence) or isinstance(content, bytes):
            raise ValueError(f"A message's content is text or a list of parts, got {_short(content)}.")
        return {**plain, "content": [self._part(part, waiting, found) for part in content]}

    def _part(self, part: Any, waiting: Mapping[str, Iterator[Any]], found: Mapping[str, list[Any]]) -> dict[str, Any]:
        if isinstance(part, str):
            return {"type": "text", "text": part}
        if not isinstance(part, Mapping):
            raise ValueError(f"A part of a message is text or a dict with a type, got {_short(part)}.")
        plain = _filled(part)
        told = plain.get("type") or next((name for name in plain if name in KINDS), "text")
        if told in TEXTS:
            if not isinstance(plain.get("text"), str):
                raise ValueError(f"A text part of a message has no text: {_short(part)}.")
            return {**plain, "type": "text"}
        if not isinstance(told, str) or told not in KINDS:
            raise ValueError(f"A part of a message has the type {told!r}; it can be text, {', '.join(KINDS)}.")
        kind = KINDS[told]
        value = _named(plain, kind)
        if value is None:
            value = next(waiting[kind], END)
            if value is END:
                raise ValueError(
                    f"The messages have more {kind} parts than the column {self.media_columns[kind]!r} has files."
                )
        decoded = self._decoded(kind, value)
        found[kind].append(decoded)
        return {"type": kind, kind: decoded}

    def _decoded(self, kind: str, value: Any) -> Any:
        """A file's content, from wherever it is; what a function before has decoded stays as it is."""
        if isinstance(value, Mapping) and ("bytes" in value or "path" in value):
            value = value["bytes"] if value.get("bytes") is not None else value.get("path")
        if value is None:
            raise ValueError(f"The column {self.media_columns[kind]!r} has a null where a file of this kind should be.")
        if isinstance(value, str | os.PathLike):
            value = self._fetched(os.fspath(value))
        if hasattr(value, "__array__") or hasattr(value, "__array_interface__") or _is_sound(value):
            return value
        if kind == "image":
            return image(value)
        return audio(value) if kind == "audio" else video(value, frames=self.video_frames)

    def _fetched(self, name: str) -> bytes:
        if name.startswith("data:"):
            head, _, data = name.partition(",")
            if not head.endswith(";base64"):
                raise ValueError(f"A data URL must hold base64, got {_short(name)}.")
            return _from_base64(data)
        if is_url(name) or os.path.isabs(name) or self.data_folder is None:
            return self.files.read(name)
        return self.files.read(f"{self.data_folder.rstrip('/')}/{name}")


def _is_sound(value: Any) -> bool:
    return isinstance(value, Mapping) and "array" in value


def _object(line: str) -> dict[str, Any]:
    """The row that a line of JSON holds."""
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ValueError(f"The line is no JSON ({error}): {_short(line)}.") from error
    if not isinstance(row, dict):
        raise ValueError(f"A row must be a JSON object, got {_short(line)}.")
    return row


def _parsed(messages: Any) -> Sequence[Any]:
    """A row's messages: a list, or the JSON text of one."""
    if isinstance(messages, str):
        try:
            messages = json.loads(messages)
        except ValueError as error:
            raise ValueError(f"The messages are text that is no JSON ({error}): {_short(messages)}.") from error
    if isinstance(messages, Mapping) and "messages" in messages:
        messages = messages["messages"]
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise ValueError(f"The messages must be a list of dicts, got {_short(messages)}.")
    return messages


def _stored(value: Any) -> Iterator[Any]:
    """The files in a row's column: none, one, or a list of them."""
    if value is None or _is_empty(value):
        return iter(())
    return iter(value) if isinstance(value, list | tuple) else iter((value,))


def _filled(values: Mapping[str, Any]) -> dict[str, Any]:
    """What is there. Arrow gives every struct all fields that any has, with None in them."""
    return {name: value for name, value in values.items() if value is not None and not _is_empty(value)}


def _is_empty(value: Any) -> bool:
    return isinstance(value, Mapping) and len(value) > 0 and all(one is None for one in value.values())


def _named(part: Mapping[str, Any], kind: str) -> Any:
    """The file that a part names, if it does."""
    for name, value in part.items():
        if KINDS.get(name) != kind and name not in ("path", "url", "bytes", "base64"):
            continue
        if name == "base64":
            return _from_base64(value)
        if isinstance(value, Mapping) and value.get("data") is not None:
            return _from_base64(value["data"])
        return value["url"] if isinstance(value, Mapping) and value.get("url") is not None else value
    return None


def _from_base64(text: Any) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (ValueError, TypeError) as error:
        raise ValueError(f"A part of a message has data that is no base64 ({error}): {_short(text)}.") from error


def _short(value: Any) -> str:
    text = repr(value[:80] if isinstance(value, str | bytes) else value)
    return text if len(text) <= 80 else text[:77] + "..."
