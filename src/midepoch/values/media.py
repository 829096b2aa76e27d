"""Decoding images, audio and video from the bytes or paths that datasets hold."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from midepoch.errors import DataFormatError, MissingExtraError
from midepoch.values.features import Feature, Features
from midepoch.values.images import ImageDecoder, opened_bytes

DECODED_KINDS = ("Image", "Audio")
PIL_IMAGES = ImageDecoder()
VIDEO_FORMATS = (
    "asf",
    "avi",
    "flv",
    "gif",
    "h264",
    "hevc",
    "matroska",
    "mov",
    "mp4",
    "mpeg",
    "mpegts",
    "mpegvideo",
    "ogg",
    "webm",
)
"""What bytes are decoded as videos. FFmpeg knows playlists too, which open other files."""


MOST_DECODED_BYTES = 4 << 30
"""What a recording or the frames of a video may take in memory. Pillow has a limit of its own for images."""
SAMPLE_BYTES = 4


class Files(Protocol):
    """Reads files that rows name."""

    def read(self, name: str | os.PathLike[str]) -> bytes:
        """All bytes of a file. Raises if rows may not name it."""


@dataclass(frozen=True, kw_only=True)
class Decode:
    """The function that ``Dataset.decode`` maps over rows."""

    features: Features
    files: Files
    images: ImageDecoder
    keeps_columns = True

    def __call__(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The decoded columns of a row."""
        return {name: decoded(row[name], feature, self.files, self.images) for name, feature in self.features.items()}


def to_decode(schema: pa.Schema, features: Features, wanted: tuple[str, ...]) -> Features:
    """The columns to decode, with the feature of each.

    ``wanted`` holds names of columns, or kinds such as "image" and "audio". If it is empty, all media are decoded.
    """
    media = {name: feature for name, feature in features.items() if _holds_media(feature)}
    if not wanted and media:
        return media
    if not wanted:
        raise ValueError(f"decode: no column is an Image or Audio feature. There are: {', '.join(schema.names)}.")
    chosen: Features = {}
    for name in wanted:
        if name in media:
            chosen[name] = media[name]
        elif name in schema.names:
            if not _holds_bytes(schema.field(name).type):
                raise ValueError(
                    f"decode: the column {name!r} is {schema.field(name).type}, neither an Image or Audio feature nor "
                    "bytes. Decode it in a function of your own, with map(fn)."
                )
            chosen[name] = Feature("Image", {})
        else:
            of_kind = {column: feature for column, feature in media.items() if _holds_media(feature, name.capitalize())}
            if not of_kind:
                raise ValueError(
                    f"decode: there is no column {name!r}, and no feature of that kind. "
                    f"There are: {', '.join(schema.names)}."
                )
            chosen.update(of_kind)
    return chosen


def decoded(value: Any, feature: Any, files: Files, images: ImageDecoder = PIL_IMAGES) -> Any:
    """A value with the images and audio that its feature names decoded. Everything else is unchanged."""
    if value is None:
        return None
    if isinstance(feature, Mapping):
        return {name: decoded(value[name], inner, files, images) for name, inner in feature.items()}
    if feature.kind == "Image":
        return images(_content(value, files), mode=feature.parameters.get("mode"))
    if feature.kind == "Audio":
        return audio(_content(value, files))
    if _holds_media(feature):
        return [decoded(inner, feature.feature, files, images) for inner in value]
    return value


def audio(value: Any) -> dict[str, Any]:
    """Samples and sampling rate from bytes.

    The array has the shape (channels, samples), or (samples,) for a single channel.
    """
    try:
        import soundfile
    except ImportError as error:
        raise MissingExtraError("soundfile", "audio", "Decoding audio") from error
    with soundfile.SoundFile(opened_bytes(value)) as file:
        _check_decoded("The audio", SAMPLE_BYTES * file.frames * file.channels)  # a few bytes may be hours of silence
        return {"array": file.read(dtype="float32").T, "sampling_rate": int(file.samplerate)}


def video(value: Any, *, frames: int | None = None) -> Any:
    """The frames of a video, from its bytes, as an array of RGB bytes of the shape (frames, height, width, 3).

    ``frames`` is how many evenly spaced frames to return; by default all. If the video has fewer, some are repeated.
    """
    try:
        import av
    except ImportError as error:
        raise MissingExtraError("av", "video", "Decoding videos") from error
    known = {"format_whitelist": ",".join(VIDEO_FORMATS)}
    with av.open(opened_bytes(value), mode="r", options=known) as container:
        if not container.streams.video:
            raise ValueError("The file has no video in it.")
        total = container.streams.video[0].frames or sum(1 for packet in container.demux(video=0) if packet.size)
    if not total:
        raise ValueError("The video has no frames.")
    wanted = range(total) if frames is None else np.linspace(0, max(0, total - 1), frames).round().astype(int).tolist()
    kept: dict[int, Any] = {}
    decoded_bytes = 0
    with av.open(opened_bytes(value), mode="r", options=known) as container:
        for number, frame in enumerate(container.decode(video=0)):
            if number in wanted:
                decoded_bytes += 3 * frame.width * frame.height
                _check_decoded("The video", decoded_bytes)
                kept[number] = frame.to_ndarray(format="rgb24")
            if number >= wanted[-1]:
                break
    if not kept:
        raise ValueError("The video has no frames.")
    last = max(kept)
    return np.stack([kept[min(number, last)] for number in wanted if min(number, last) in kept])


def _check_decoded(what: str, nbytes: int) -> None:
    """Raise before something takes too much memory that may be meant to fill it."""
    if nbytes > MOST_DECODED_BYTES:
        raise DataFormatError(
            f"{what} becomes more than {MOST_DECODED_BYTES:,} bytes once decoded. If it is trusted, decode it in a "
            "function of your own, with map(fn), or fewer frames of it."
        )


def _content(value: Any, files: Files) -> Any:
    """The bytes of a value that holds or names them."""
    if isinstance(value, Mapping):
        value = value.get("bytes") if value.get("bytes") is not None else value.get("path")
    return files.read(value) if isinstance(value, str | os.PathLike) else value


def _holds_media(feature: Any, *kinds: str) -> bool:
    """True if a feature is an image or audio, or has one inside; with ``kinds``, of one of those kinds."""
    if isinstance(feature, Mapping):
        return any(_holds_media(inner, *kinds) for inner in feature.values())
    if not isinstance(feature, Feature):
        return False
    return feature.kind in (kinds or DECODED_KINDS) or _holds_media(feature.parameters.get("feature"), *kinds)


def _holds_bytes(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(kind.field(number).name == "bytes" for number in range(kind.num_fields))
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))
