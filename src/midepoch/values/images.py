"""Images from the bytes of their files: PIL images, or arrays of pixels that libjpeg-turbo decodes."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from midepoch._common.checks import check_integer
from midepoch.errors import MissingExtraError

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


def opened_bytes(value: Any) -> io.BytesIO:
    """A file of bytes. Raises if the value is anything else."""
    if isinstance(value, bytes | bytearray | memoryview):
        return io.BytesIO(value)
    raise TypeError(f"Expected bytes, a path, or a dict with 'bytes' or 'path', got {type(value).__name__}.")


def _open(value: Any) -> Any:
    """A PIL image of which only the head is read. Raises for other formats, and for too many pixels."""
    try:
        import PIL.Image
    except ImportError as error:
        raise MissingExtraError("Pillow", "image", "Decoding images") from error
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
    try:
        import simplejpeg
    except ImportError as error:
        raise MissingExtraError("simplejpeg", "jpeg", 'Decoding images with decoder="turbo"') from error
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
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError("torch", "torch", 'Resizing images with decoder="turbo"') from error
    planes = torch.from_numpy(pixels).unsqueeze(0).permute(0, 3, 1, 2)  # the other way round torch would copy them
    resized = torch.nn.functional.interpolate(planes, size, mode="bilinear", antialias=True, align_corners=False)
    found: Pixels = resized.permute(0, 2, 3, 1)[0].contiguous().numpy()
    return found
