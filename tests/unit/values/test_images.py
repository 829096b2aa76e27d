"""Images by libjpeg-turbo are those of Pillow, and so are the limits."""

import io
import pickle
import sys

import numpy as np
import PIL.Image
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import simplejpeg
import torch

import midepoch as me
from midepoch.values.media import ImageDecoder, checked_size

TURBO = ImageDecoder(decoder="turbo")


def photo(seed=0, width=50, height=40, mode="RGB", kind="JPEG", **options):
    """A picture of blurred noise, as bytes."""
    noise = np.random.default_rng(seed).integers(0, 255, (6, 5, 3), dtype=np.uint8)
    file = io.BytesIO()
    made = PIL.Image.fromarray(noise).resize((width, height), PIL.Image.Resampling.BICUBIC).convert(mode)
    made.save(file, kind, **options)
    return file.getvalue()


def by_pillow(content, mode="RGB", **options):
    return np.asarray(ImageDecoder(**options)(content, mode=mode))


def turned(orientation, **options):
    exif = PIL.Image.Exif()
    exif[0x0112] = orientation
    return photo(exif=exif, **options)


def table_of(tmp_path, *contents):
    path = tmp_path / "pictures.parquet"
    pq.write_table(pa.table({"id": range(len(contents)), "picture": list(contents)}), path)
    return me.read(path)


@pytest.mark.parametrize("seed", range(12))
def test_jpegs_have_the_pixels_of_pillow(seed, monkeypatch):
    rng = np.random.default_rng(seed)
    width, height = rng.integers(1, 90, 2).tolist()
    options = {"quality": int(rng.integers(20, 100)), "progressive": bool(seed % 2), "subsampling": seed % 3}
    content = photo(seed, width, height, "RGB" if seed % 4 else "L", **options)
    expected = by_pillow(content)
    monkeypatch.setattr(PIL.Image.Image, "convert", None)  # Pillow decodes no pixel of them
    for value in (content, bytearray(content), memoryview(content)):
        found = TURBO(value)
        assert (found.dtype, found.shape, found.flags.c_contiguous) == (np.uint8, (height, width, 3), True)
        assert np.array_equal(found, expected)


@pytest.mark.parametrize(("width", "height"), [(50, 40), (16, 24), (200, 150), (31, 333), (1, 1), (24, 16), (48, 32)])
def test_resized_jpegs_are_near_those_of_pillow(width, height):
    content = photo(3, width, height, quality=95)
    found = ImageDecoder(decoder="turbo", size=(16, 24))(content)
    assert (found.dtype, found.shape, found.flags.c_contiguous) == (np.uint8, (16, 24, 3), True)
    expected = by_pillow(content, size=(16, 24))
    assert np.abs(found.astype(int) - expected).max() <= (8 if width > 24 * 2 else 2)  # others are decoded in full
    assert np.abs(found.astype(int) - expected).mean() < 1


def test_files_that_are_not_plain_jpegs_are_decoded_by_pillow():
    files = {
        "png": photo(kind="PNG"),
        "palette": photo(mode="P", kind="PNG"),
        "transparent": photo(mode="RGBA", kind="PNG"),
        "webp": photo(kind="WEBP"),
        "cmyk": photo(mode="CMYK"),
        **{f"turned by {orientation}": turned(orientation) for orientation in range(1, 10)},
    }
    for name, content in files.items():
        assert np.array_equal(TURBO(content), by_pillow(content)), name
        sized = ImageDecoder(decoder="turbo", size=(8, 12))(content)
        assert sized.shape == (8, 12, 3), name
        assert np.abs(sized.astype(int) - by_pillow(content, size=(8, 12))).max() <= 2, name
    assert TURBO(turned(6)).shape == (50, 40, 3)
    assert np.array_equal(TURBO(photo(), mode="L"), by_pillow(photo(), mode="L"))


def test_a_turned_image_is_turned_before_it_is_resized():
    wide = turned(6, width=400, height=200)
    upright = PIL.Image.open(io.BytesIO(wide)).transpose(PIL.Image.Transpose.ROTATE_270)
    expected = np.asarray(upright.resize((190, 40), PIL.Image.Resampling.BILINEAR))
    for decoder in ("pillow", "turbo"):  # half of the pixels would be too few for 190 in a row
        assert np.array_equal(ImageDecoder(decoder=decoder, size=(40, 190))(wide), expected)


def test_a_broken_jpeg_raises_and_names_its_row(tmp_path):
    dataset = table_of(tmp_path, photo(), photo(1)[:-300])
    with pytest.raises(OSError, match="truncated") as caught:
        list(dataset.decode("picture", decoder="turbo"))
    assert any("decode" in note and "row 1 of pictures.parquet" in note for note in caught.value.__notes__)
    for content in (b"", b"\xff\xd8\xff", photo(kind="EPS")):
        with pytest.raises(PIL.UnidentifiedImageError):
            TURBO(content)


def test_an_image_of_too_many_pixels_is_refused_before_it_is_decoded(monkeypatch):
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", 500)
    monkeypatch.setattr(simplejpeg, "decode_jpeg", None)
    for decoder in (TURBO, ImageDecoder(decoder="turbo", size=(2, 2)), ImageDecoder(size=(2, 2))):
        with pytest.raises(PIL.Image.DecompressionBombError):
            decoder(photo())


def test_arrays_of_one_size_make_batches_that_resume(tmp_path):
    dataset = table_of(tmp_path, *(photo(seed, 30 + seed, 20) for seed in range(10)), photo(kind="PNG"), None)
    sized = dataset.take(11).shuffle(1, level="row").decode("picture", decoder="turbo", size=8)
    batch = next(iter(sized.with_format("torch").batch(4)))
    assert (batch["picture"].dtype, batch["picture"].shape) == (torch.uint8, (4, 8, 8, 3))
    me.testing.assert_resumes(sized.map(lambda row: {"picture": row["picture"].tolist()}))
    assert len(list(pickle.loads(pickle.dumps(sized)))) == 11
    assert [row["picture"] for row in dataset.skip(11).decode("picture", decoder="turbo")] == [None]


def test_a_state_names_another_decoder_and_another_size(tmp_path):
    dataset = table_of(tmp_path, photo(), photo(1))
    plain, turbo = dataset.decode("picture"), dataset.decode("picture", decoder="turbo", size=(8, 16))
    assert plain.state_dict()["fingerprint"]["pipeline"] == [{"op": "decode", "fn": "Decode"}], "as ever"
    with pytest.raises(
        me.CheckpointMismatchError, match=r"decoder of stage 1, decode, was None then and is 'turbo' now"
    ):
        turbo.load_state_dict(plain.state_dict())
    with pytest.raises(
        me.CheckpointMismatchError, match=r"size of stage 1, decode, was \[8, 16\] then and is None now"
    ):
        dataset.decode("picture", decoder="turbo").load_state_dict(turbo.state_dict())
    dataset.decode("picture", decoder="turbo", size=[8, 16]).load_state_dict(turbo.state_dict())


def test_what_is_no_size_and_no_decoder_raises_at_once(tmp_path):
    dataset = table_of(tmp_path, photo())
    assert [checked_size(size) for size in (None, 7, (7, 9), [7, 9])] == [None, (7, 7), (7, 9), (7, 9)]
    for size, error in (
        (0, ValueError),
        ((1, 2, 3), ValueError),
        ((4, -1), ValueError),
        ("8", TypeError),
        (1.5, TypeError),
    ):
        with pytest.raises(error, match="size"):
            dataset.decode("picture", size=size)
    with pytest.raises(ValueError, match=r"decoder is 'cv2'; it must be \"pillow\" or \"turbo\""):
        dataset.decode("picture", decoder="cv2")


@pytest.mark.parametrize(("module", "extra"), [("simplejpeg", "jpeg"), ("torch", "torch"), ("PIL", "image")])
def test_a_missing_library_raises_with_the_install_command(monkeypatch, module, extra):
    content = photo()
    for name in [name for name in sys.modules if name == module or name.startswith(f"{module}.")]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(me.MissingExtraError, match=rf"pip install 'midepoch\[{extra}\]'"):
        ImageDecoder(decoder="turbo", size=(4, 4))(content)
