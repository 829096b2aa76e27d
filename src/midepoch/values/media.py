"""Decoding images, audio, video and other files from the bytes or paths that datasets hold."""

import json
import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal, Protocol, get_args

import numpy as np
import pyarrow as pa

from midepoch._common.checks import check_integer
from midepoch.errors import NotAllowedError, needs
from midepoch.values.features import Feature, Features
from midepoch.values.video import check_decoded, frames_of, opened_bytes

IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "MPO", "AVIF", "JPEG2000", "PPM", "TGA", "ICO", "DIB")
"""What bytes are decoded as images. Pillow knows more, some of which start other programs."""
TURNED = 5
"""The first EXIF orientation of which height and width are swapped."""
Decoder = Literal["pillow", "turbo"]
Pixels = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True, kw_only=True)
class ImageDecoder:
    """How images are decoded: by "pillow" to PIL images, or by "turbo" to arrays; in any case to ``size``, if given."""

    decoder: Decoder = "pillow"
    size: tuple[int, int] | None = None
    """Height and width."""

    def __post_init__(self) -> None:
        if self.decoder not in get_args(Decoder):
            raise ValueError(f'decoder is {self.decoder!r}; it must be "pillow" or "turbo".')

    def __call__(self, value: Any, *, mode: str | None = None) -> Any:
        """An image from bytes. Without a ``mode``, PIL images keep theirs; arrays and resized images are RGB."""
        if self.decoder == "pillow" and self.size is None:
            return image(value, mode=mode)
        with _open(value) as opened:
            if self.decoder == "turbo" and mode in (None, "RGB"):
                found = _decode_by_turbo(value, opened, self.size)
                if found is not None:
                    return found
            picture = _resized(opened, mode or "RGB", self.size)
        return np.array(picture) if self.decoder == "turbo" else picture

    def describe(self) -> dict[str, Any]:
        """What a state remembers, because it changes pixels. Defaults are left out: earlier states do not name them."""
        return {
            "decoder": None if self.decoder == "pillow" else self.decoder,
            "size": None if self.size is None else list(self.size),
        }


def checked_size(size: int | Sequence[int] | None) -> tuple[int, int] | None:
    """Height and width, of which a single number means both."""
    if size is None:
        return None
    both = tuple(size) if isinstance(size, Sequence) and not isinstance(size, str) else (size, size)
    if len(both) != 2:
        raise ValueError(f"size is {size!r}; it must be a number of pixels, or a pair of height and width.")
    height, width = (check_integer("size", side, least=1) for side in both)
    return height, width


def image(value: Any, *, mode: str | None = None) -> Any:
    """A PIL image from bytes. Its pixels are decoded now, not at first use."""
    with _open(value) as opened:
        opened.load()
        upright = _upright(opened)
        return upright.convert(mode) if mode else upright


def _open(value: Any) -> Any:
    """A PIL image of which only the head is read. Raises for other formats, and for too many pixels."""
    with needs("Pillow", "image", "Decoding images"):
        import PIL.Image
    PIL.Image.init()
    formats = [name for name in IMAGE_FORMATS if name in PIL.Image.OPEN]
    return PIL.Image.open(opened_bytes(value), formats=formats)


def _orientation(opened: Any) -> int:
    """How EXIF says that the image lies, from 2 to 8; 1 if it lies right, or if EXIF says nothing that is known."""
    import PIL.ExifTags

    found = opened.getexif().get(PIL.ExifTags.Base.Orientation)
    return found if found in range(2, 9) else 1


def _upright(opened: Any) -> Any:
    import PIL.ImageOps

    return PIL.ImageOps.exif_transpose(opened) if _orientation(opened) != 1 else opened


def _resized(opened: Any, mode: str, size: tuple[int, int] | None) -> Any:
    """The image in a mode and a size, by Pillow. Of a large JPEG fewer pixels are decoded."""
    import PIL.Image

    if size is None:
        return _upright(opened).convert(mode)
    height, width = size
    opened.draft(None, (height, width) if _orientation(opened) >= TURNED else (width, height))
    return _upright(opened).convert(mode).resize((width, height), PIL.Image.Resampling.BILINEAR)


def _decode_by_turbo(value: Any, opened: Any, size: tuple[int, int] | None) -> Pixels | None:
    """The RGB pixels of a JPEG; None for files that Pillow has to decode, or to refuse.

    These are other formats, colours that are not in YCbCr or grey, turned images, and files that are not quite right:
    libjpeg-turbo would fill in what is missing.
    """
    with needs("simplejpeg", "jpeg", 'Decoding images with decoder="turbo"'):
        import simplejpeg
    if opened.format not in ("JPEG", "MPO") or opened.mode not in ("RGB", "L") or _orientation(opened) != 1:
        return None
    height, width = size or (0, 0)
    try:
        found: Pixels = simplejpeg.decode_jpeg(value, "RGB", min_height=height, min_width=width, min_factor=2)
    except ValueError:
        return None
    return found if size is None or found.shape[:2] == size else _interpolated(found, size)


def _interpolated(pixels: Pixels, size: tuple[int, int]) -> Pixels:
    """Pixels in another size, by torch: as Pillow's, but for one step of rounding or two, and faster."""
    with needs("torch", "torch", 'Resizing images with decoder="turbo"'):
        import torch
    planes = torch.from_numpy(pixels).unsqueeze(0).permute(0, 3, 1, 2)  # the other way round torch would copy them
    resized = torch.nn.functional.interpolate(planes, size, mode="bilinear", antialias=True, align_corners=False)
    found: Pixels = resized.permute(0, 2, 3, 1)[0].contiguous().numpy()
    return found


PIL_IMAGES = ImageDecoder()
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
        made = {}
        for name, feature in self.features.items():
            try:
                made[name] = decoded(row[name], feature, self.files, self.images)
            except Exception as error:
                if isinstance(row[name], Mapping) and isinstance(path := row[name].get("path"), str):
                    error.add_note(
                        f"midepoch: the file is {path[:300]}. Restore it, or leave out the row below by `without`."
                    )
                raise
        return made


def to_decode(
    schema: pa.Schema, features: Features, wanted: tuple[str, ...], *, allow_pickle: bool = False
) -> Features:
    """The columns to decode, with the feature of each. Raises if one is pickled, unless that is allowed.

    ``wanted`` holds names of columns, or kinds such as "image" and "json". If it is empty, everything known is decoded.
    """
    chosen = _chosen(schema, features, wanted)
    pickled = [name for name, feature in chosen.items() if _holds_media(feature, "Pickle")]
    if pickled and not allow_pickle:
        raise NotAllowedError(
            f"decode: the column {pickled[0]!r} is pickled, and unpickling runs whatever code its writer put there. If "
            "you trust the writer, pass allow_pickle=True. Else name the columns to decode, without this one."
        )
    return chosen


def _chosen(schema: pa.Schema, features: Features, wanted: tuple[str, ...]) -> Features:
    media = {name: feature for name, feature in features.items() if _holds_media(feature)}
    if not wanted and media:
        return media
    if not wanted:
        kinds = f"{', '.join(DECODED_KINDS[:-1])} or {DECODED_KINDS[-1]}"
        raise ValueError(f"decode: no column is an {kinds} feature. There are: {', '.join(schema.names)}.")
    chosen: Features = {}
    for name in wanted:
        kind = None if name in schema.names else name.capitalize()
        named = {
            column: feature
            for column, feature in media.items()
            if (column == name if kind is None else _holds_media(feature, kind))
        }
        if not named and kind is not None:
            raise ValueError(
                f"decode: there is no column {name!r}, and no feature of that kind. "
                f"There are: {', '.join(schema.names)}."
            )
        if not named and not _holds_bytes(schema.field(name).type):
            raise ValueError(
                f"decode: the column {name!r} is {schema.field(name).type}, neither an Image or Audio feature nor "
                "bytes. Decode it in a function of your own, with map(fn)."
            )
        chosen |= named or {name: Feature("Image", {})}
    return chosen


def decoded(value: Any, feature: Any, files: Files, images: ImageDecoder = PIL_IMAGES) -> Any:
    """A value with the images and other files that its feature names decoded. Everything else is unchanged."""
    if value is None:
        return None
    if isinstance(feature, Mapping):
        return {name: decoded(value[name], inner, files, images) for name, inner in feature.items()}
    if feature.kind == "Image":
        return images(_content(value, files), mode=feature.parameters.get("mode"))
    if feature.kind in ("Audio", "Video"):
        content = _content(value, files)
        return audio(content) if feature.kind == "Audio" else frames_of(opened_bytes(content))
    if feature.kind in DECODERS:
        return DECODERS[feature.kind](value)
    if feature.kind == "Pickle":
        return pickle.loads(value)  # to_decode has refused it, unless the user allows it
    if _holds_media(feature):
        return [decoded(inner, feature.feature, files, images) for inner in value]
    return value


def audio(value: Any) -> dict[str, Any]:
    """Samples and sampling rate from bytes.

    The array has the shape (channels, samples), or (samples,) for a single channel.
    """
    with needs("soundfile", "audio", "Decoding audio"):
        import soundfile
    with soundfile.SoundFile(opened_bytes(value)) as file:
        check_decoded("The audio", SAMPLE_BYTES * file.frames * file.channels)  # a few bytes may be hours of silence
        return {"array": file.read(dtype="float32").T, "sampling_rate": int(file.samplerate)}


def text(value: bytes) -> str:
    """The text of UTF-8 bytes."""
    return value.decode()


def array(value: bytes) -> Any:
    """The array of a .npy file. Arrays of Python objects are refused: to load them can run code."""
    return np.load(opened_bytes(value), allow_pickle=False)


def raw_image(value: bytes) -> Any:
    """A PIL image from its width, height and mode, and its pixels, as MosaicML Streaming stores it."""
    with needs("Pillow", "image", "Decoding images"):
        import PIL.Image
    width, height, length = np.frombuffer(value[:12], "<u4").tolist()
    return PIL.Image.frombytes(value[12 : 12 + length].decode(), (width, height), value[12 + length :])


DECODERS: Mapping[str, Callable[[Any], Any]] = {
    "Json": json.loads,
    "Text": text,
    "Integer": int,
    "Array": array,
    "RawImage": raw_image,
    "Decimal": Decimal,
}
"""How values that name no files are decoded, by the kind of their feature."""
DECODED_KINDS = ("Image", "Audio", "Video", *DECODERS, "Pickle")


def _content(value: Any, files: Files) -> Any:
    """The bytes of a value that holds or names them."""
    if isinstance(value, Mapping):
        value = value.get("bytes") if value.get("bytes") is not None else value.get("path")
    return files.read(value) if isinstance(value, str | os.PathLike) else value


def _holds_media(feature: Any, *kinds: str) -> bool:
    """True if a feature is an image or another file, or has one inside; with ``kinds``, of one of those kinds."""
    if isinstance(feature, Mapping):
        return any(_holds_media(inner, *kinds) for inner in feature.values())
    if not isinstance(feature, Feature):
        return False
    return feature.kind in (kinds or DECODED_KINDS) or _holds_media(feature.parameters.get("feature"), *kinds)


def _holds_bytes(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(kind.field(number).name == "bytes" for number in range(kind.num_fields))
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))
