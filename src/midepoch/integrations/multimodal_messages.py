"""Chat messages with images, audio and video: read from a row, with every file in them decoded.

The content of a message is text, or a list of parts as in the OpenAI API. Messages of ShareGPT, with "from" and
"value", get a role and a content. A part names its file (a path, a data URL, or bytes), or refers to the next file in
the row's column of that kind.
"""

import base64
import json
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from midepoch.stages.skip import FILE_NOTE
from midepoch.storage.named_files import NamedFiles
from midepoch.values.media import audio, image
from midepoch.values.video import frames_of, opened_bytes

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
ROLES = {"human": "user", "gpt": "assistant"}
"""The names of roles in the ShareGPT format, where they differ."""
END = object()


@dataclass(frozen=True, kw_only=True)
class Messages:
    """A function of a row: it decodes the files in the row's messages, and calls the user's processor."""

    processor: Callable[..., Any]
    column: str
    media_columns: Mapping[str, str]
    """The column of files of each kind."""
    files: Sequence[NamedFiles] = field(default_factory=lambda: (NamedFiles(),), repr=False)
    """The files that rows may name: for all rows, or for those from each of the ``first_rows`` on."""
    first_rows: Sequence[int] = ()
    """If they are set, the function gets the number of the row too."""
    video_frames: int | None = None
    of_lines: bool = False
    """True if a row is JSON text in a column "line"."""

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The processor: a checkpoint knows this function by the processor's name."""
        return self.processor

    def __call__(self, row: Mapping[str, Any], *others: Any) -> Any:
        """The processor's result for a row; after its number comes a random generator, if the processor takes one."""
        files, rng = self.files[0], others
        if self.first_rows:
            files, rng = self.files[bisect_right(self.first_rows, others[0]) - 1], others[1:]
        result = self.processor(self.sample(_object(row["line"]) if self.of_lines else row, files), *rng)
        if result is None:
            raise TypeError(
                "The processor returned None. It must return a dict of arrays with input_ids. Does it end without a "
                "return statement?"
            )
        return result

    def sample(self, row: Mapping[str, Any], files: NamedFiles) -> dict[str, Any]:
        """The row with plain messages, and with lists of decoded "images", "audios" and "videos" in their order."""
        if self.column not in row:
            raise ValueError(f"There is no column {self.column!r} with messages; the row has: {', '.join(row)}.")
        media = RowMedia(self, row, files)
        messages = [media.message(message) for message in _parsed(row[self.column])]
        decoded = media.all_decoded()
        others = {name: value for name, value in row.items() if name not in self.media_columns.values()}
        return {**others, self.column: messages, **{f"{kind}s": values for kind, values in decoded.items()}}


class RowMedia:
    """The files of one row, decoded as its messages refer to them."""

    def __init__(self, messages: Messages, row: Mapping[str, Any], files: NamedFiles) -> None:
        self._columns, self._frames, self._files = messages.media_columns, messages.video_frames, files
        self._stored = {kind: _stored(row.get(column)) for kind, column in self._columns.items()}
        self._decoded: dict[str, list[Any]] = {kind: [] for kind in self._columns}

    def all_decoded(self) -> dict[str, list[Any]]:
        """The contents of all files by kind. Those that no part refers to belong to the sample too, and come last."""
        for kind, rest in self._stored.items():
            self._decoded[kind] += [self._decode(kind, value) for value in rest]
        return self._decoded

    def message(self, message: Any) -> dict[str, Any]:
        """A message with plain parts, and with decoded files in place of references."""
        if isinstance(message, Mapping) and message.get("role") is None and message.get("from") is not None:
            message = _of_sharegpt(message)
        if not isinstance(message, Mapping) or message.get("role") is None:
            raise ValueError(f"A message must be a dict with a role and a content, got {_short(message)}.")
        plain = _filled(message)
        content = plain.get("content", "")
        if isinstance(content, str):
            return plain
        if not isinstance(content, Sequence) or isinstance(content, bytes):
            raise ValueError(f"The content of a message must be text or a list of parts, got {_short(content)}.")
        return {**plain, "content": list(map(self._part, content))}

    def _part(self, part: Any) -> dict[str, Any]:
        if isinstance(part, str):
            return {"type": "text", "text": part}
        if not isinstance(part, Mapping):
            raise ValueError(f"A part of a message must be text or a dict with a type, got {_short(part)}.")
        plain = _filled(part)
        part_type = plain.get("type") or next((name for name in plain if name in KINDS), "text")
        if part_type in TEXTS:
            if not isinstance(plain.get("text"), str):
                raise ValueError(f"A text part of a message has no text: {_short(part)}.")
            return {**plain, "type": "text"}
        if not isinstance(part_type, str) or part_type not in KINDS:
            raise ValueError(f"A part of a message has the type {part_type!r}; it can be text, {', '.join(KINDS)}.")
        kind = KINDS[part_type]
        value = _named(plain, kind)
        if value is None:
            value = next(self._stored[kind], END)
            if value is END:
                raise ValueError(
                    f"The messages have more {kind} parts than the column {self._columns[kind]!r} has files."
                )
        content = self._decode(kind, value)
        self._decoded[kind].append(content)
        return {"type": kind, kind: content}

    def _decode(self, kind: str, value: Any) -> Any:
        """The content of a file. A note on any error has the file's path, if the row has it."""
        path = None
        if isinstance(value, Mapping) and ("bytes" in value or "path" in value):
            path = value.get("path")
            value = value["bytes"] if value.get("bytes") is not None else value.get("path")
        if value is None:
            raise ValueError(f"The column {self._columns[kind]!r} has a null in place of a file.")
        if isinstance(value, str | os.PathLike):
            path = os.fspath(value)
        try:
            return self._content(kind, value)
        except Exception as error:
            if isinstance(path, str) and not path.startswith("data:"):
                error.add_note(f"{FILE_NOTE}{path[:300]}")
            raise

    def _content(self, kind: str, value: Any) -> Any:
        """The same. A value that an earlier function has decoded is returned unchanged."""
        if isinstance(value, str | os.PathLike):
            value = self._fetched(os.fspath(value))
        if hasattr(value, "__array__") or hasattr(value, "__array_interface__") or _is_audio(value):
            return value
        if kind == "image":
            return image(value)
        return audio(value) if kind == "audio" else frames_of(opened_bytes(value), numbers=self._frames)

    def _fetched(self, name: str) -> bytes:
        if name.startswith("data:"):
            head, _, data = name.partition(",")
            if not head.endswith(";base64"):
                raise ValueError(f"A data URL must hold base64, got {_short(name)}.")
            return _from_base64(data)
        return self._files.read(name)


def _is_audio(value: Any) -> bool:
    return isinstance(value, Mapping) and "array" in value


def _object(line: str) -> dict[str, Any]:
    """The row in a line of JSON."""
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ValueError(f"The line is not JSON ({error}): {_short(line)}.") from error
    if not isinstance(row, dict):
        raise ValueError(f"A row must be a JSON object, got {_short(line)}.")
    return row


def _parsed(messages: Any) -> Sequence[Any]:
    """The messages of a row: a list, or its JSON text."""
    if isinstance(messages, str):
        try:
            messages = json.loads(messages)
        except ValueError as error:
            raise ValueError(f"The messages are text that is not JSON ({error}): {_short(messages)}.") from error
    if isinstance(messages, Mapping) and "messages" in messages:
        messages = messages["messages"]
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise ValueError(f"The messages must be a list of dicts, got {_short(messages)}.")
    return messages


def _of_sharegpt(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message with "from" and "value", with the names that all others have."""
    others = {name: value for name, value in message.items() if name not in ("from", "value", "role", "content")}
    role = message["from"]
    return {"role": ROLES.get(role, role), "content": message.get("value"), **others}


def _stored(value: Any) -> Iterator[Any]:
    """The files in a row's column: none, one, or a list of them."""
    if value is None or _is_empty(value):
        return iter(())
    return iter(value) if isinstance(value, list | tuple) else iter((value,))


def _filled(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that are not None. In Arrow every struct has all fields, with None for missing ones."""
    return {name: value for name, value in values.items() if value is not None and not _is_empty(value)}


def _is_empty(value: Any) -> bool:
    return isinstance(value, Mapping) and len(value) > 0 and all(field is None for field in value.values())


def _named(part: Mapping[str, Any], kind: str) -> Any:
    """The file that a part names; None if it names none."""
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
        raise ValueError(f"A part of a message has data that is not base64 ({error}): {_short(text)}.") from error


def _short(value: Any) -> str:
    text = repr(value[:80] if isinstance(value, str | bytes) else value)
    return text if len(text) <= 80 else text[:77] + "..."
