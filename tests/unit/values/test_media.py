"""Images, audio and video are decoded to what `datasets` decodes."""

import io
import sys

import datasets
import numpy as np
import PIL.Image
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import midepoch as me
from media import film, picture, tone
from midepoch.storage.named_files import NamedFiles
from midepoch.values import video as video_module
from midepoch.values.features import Feature
from midepoch.values.media import decoded, image

SIZE = (6, 4)


def pixels(picture):
    return np.asarray(picture).tolist()


@pytest.fixture
def saved(tmp_path):
    """A saved dataset with images and audio in columns, lists and structs."""
    features = datasets.Features(
        {
            "id": datasets.Value("int64"),
            "image": datasets.Image(),
            "gray": datasets.Image(mode="L"),
            "many": datasets.List(datasets.Image()),
            "turns": datasets.List({"who": datasets.Value("string"), "image": datasets.Image()}),
            "meta": {"note": datasets.Value("string"), "thumb": datasets.Image()},
            "audio": datasets.Audio(decode=True),
        }
    )
    rows = [
        {
            "id": number,
            "image": {"bytes": picture(number, "PNG" if number % 2 else "JPEG"), "path": None} if number != 2 else None,
            "gray": {"bytes": picture(number), "path": None},
            "many": [{"bytes": picture(number + one), "path": None} for one in range(number % 3)],
            "turns": [{"who": "me", "image": {"bytes": picture(9), "path": None}}, {"who": "you", "image": None}],
            "meta": {"note": "x", "thumb": {"bytes": picture(7, mode="L"), "path": None}},
            "audio": {"bytes": tone(kind="FLAC" if number % 2 else "WAV"), "path": None},
        }
        for number in range(4)
    ]
    table = pa.Table.from_pylist(rows, features.arrow_schema)
    datasets.Dataset(table).save_to_disk(tmp_path / "saved")
    return tmp_path / "saved"


def opened(saved):
    return me.fast_load_iterable_dataset(saved)


def same_as_datasets(ours, theirs):
    if isinstance(ours, PIL.Image.Image):
        return ours.mode == theirs.mode and ours.size == theirs.size and pixels(ours) == pixels(theirs)
    if isinstance(ours, dict):
        return list(ours) == list(theirs) and all(same_as_datasets(ours[key], theirs[key]) for key in ours)
    if isinstance(ours, list):
        return len(ours) == len(theirs) and all(map(same_as_datasets, ours, theirs))
    return ours == theirs


def test_decode_without_arguments_equals_what_datasets_decodes(saved):
    theirs = datasets.load_from_disk(saved).remove_columns("audio")
    for row, expected in zip(opened(saved).decode(), theirs, strict=True):
        audio = row.pop("audio")
        assert audio["sampling_rate"] == 8000
        assert np.allclose(audio["array"], np.linspace(-0.5, 0.5, 40), atol=1e-4)
        assert same_as_datasets(row, expected)


@pytest.mark.parametrize(
    ("wanted", "changed"),
    [
        (("gray",), {"gray"}),
        (("image",), {"image"}),  # a column of that name wins over the kind
        (("Image",), {"image", "gray", "many", "turns", "meta"}),
        (("audio",), {"audio"}),
        (("gray", "many"), {"gray", "many"}),
    ],
)
def test_columns_are_chosen_by_name_or_by_kind(saved, wanted, changed):
    for row, raw in zip(opened(saved).decode(*wanted), opened(saved), strict=True):
        differ = {name for name in row if row[name] != raw[name]}
        assert changed - {"many", "image"} <= differ <= changed


def test_columns_of_bytes_are_decoded_as_images_and_others_raise(tmp_path):
    pq.write_table(pa.table({"png": [picture(3), None], "id": [1, 2]}), tmp_path / "a.parquet")
    dataset = me.read(tmp_path / "a.parquet")
    first, second = dataset.decode("png")
    assert (first["png"].size, second["png"]) == (SIZE, None)
    with pytest.raises(ValueError, match=r"no column is an Image, Audio, .* or Pickle feature. There are: png, id"):
        dataset.decode()
    with pytest.raises(ValueError, match="the column 'id' is int64, neither an Image or Audio feature nor bytes"):
        dataset.decode("id")
    with pytest.raises(ValueError, match=r"there is no column 'jpg', and no feature of that kind. There are: png, id"):
        dataset.decode("jpg")
    with pytest.raises(ValueError, match=r"decode after batch is not possible: it works on single rows"):
        dataset.batch(2).decode("png")


def test_values_may_be_bytes_paths_or_dicts_of_either(tmp_path):
    (tmp_path / "a.png").write_bytes(picture(3))
    (tmp_path / "a.wav").write_bytes(tone(rate=16_000, channels=2))
    files = NamedFiles(tmp_path)
    for value in (
        picture(3),
        bytearray(picture(3)),
        memoryview(picture(3)),
        "a.png",
        tmp_path / "a.png",
        {"bytes": None, "path": "a.png"},
        {"bytes": picture(3), "path": "gone.png"},
    ):
        found = decoded(value, Feature("Image", {}), files)
        assert pixels(found) == pixels(PIL.Image.open(io.BytesIO(picture(3))))
    stereo = decoded({"bytes": None, "path": "a.wav"}, Feature("Audio", {}), files)
    assert (stereo["array"].shape, stereo["array"].dtype, stereo["sampling_rate"]) == ((2, 40), np.float32, 16_000)
    with pytest.raises(TypeError, match="Expected bytes, a path, or a dict with 'bytes' or 'path', got NoneType"):
        decoded({"bytes": None, "path": None}, Feature("Image", {}), files)
    with pytest.raises(TypeError, match="got int"):
        image(3)
    with pytest.raises(TypeError, match="got str"):
        image("a.png")


def test_decode_opens_only_files_in_the_folder_that_was_given(tmp_path):
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "a.png").write_bytes(picture(3))
    features = datasets.Features({"image": datasets.Image()})
    rows = [{"image": {"bytes": None, "path": "a.png"}}, {"image": {"bytes": None, "path": "../a.png"}}]
    pq.write_table(pa.Table.from_pylist(rows, features.arrow_schema), tmp_path / "a.parquet")
    dataset = me.read(tmp_path / "a.parquet")
    with pytest.raises(me.NotAllowedError, match="none was given"):
        next(iter(dataset.decode()))
    found = iter(dataset.decode(data_folder=tmp_path / "pictures"))
    assert next(found)["image"].size == SIZE
    with pytest.raises(me.NotAllowedError, match=r"outside of data_folder") as caught:
        next(found)
    assert any("row 1 of a.parquet" in note for note in caught.value.__notes__)


def test_formats_that_open_other_files_or_start_programs_are_not_decoded(tmp_path):
    film(tmp_path / "other.mp4")
    playlist = f"ffconcat version 1.0\nfile '{tmp_path}/other.mp4'\n".encode()
    with pytest.raises(Exception, match="Invalid"):
        video(playlist)
    script = io.BytesIO()
    PIL.Image.new("RGB", SIZE).save(script, "EPS")
    with pytest.raises(PIL.UnidentifiedImageError):
        image(script.getvalue())


@pytest.mark.parametrize(("module", "extra", "column"), [("PIL", "image", "gray"), ("soundfile", "audio", "audio")])
def test_a_missing_library_raises_with_the_install_command(saved, monkeypatch, module, extra, column):
    for name in [name for name in sys.modules if name == module or name.startswith(f"{module}.")]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(me.MissingExtraError, match=rf"pip install 'midepoch\[{extra}\]'"):
        next(iter(opened(saved).decode(column)))


def video(value, frames=None):
    return video_module.frames_of(video_module.opened_bytes(value), numbers=frames)


def greys(frames):
    return (frames.mean((1, 2, 3)) / 20).round().astype(int).tolist()


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.avi", "a.h264"])
def test_all_frames_of_a_video_and_some_of_them(tmp_path, name):
    path = film(tmp_path / name, codec="libx264" if name == "a.h264" else "mpeg4")
    for value in (path.read_bytes(), memoryview(path.read_bytes())):
        frames = video(value)
        assert (frames.shape, frames.dtype) == ((10, 16, 32, 3), np.uint8)
        assert greys(frames) == list(range(10))
    for wanted, expected in ((1, [0]), (2, [0, 9]), (4, [0, 3, 6, 9]), (10, list(range(10)))):
        assert greys(video(path.read_bytes(), frames=wanted)) == expected
    more = video(path.read_bytes(), frames=15)
    assert len(more) == 15, "if the video has fewer frames, some are repeated"
    assert sorted(set(greys(more))) == list(range(10))


def test_audio_whose_header_lies_takes_no_memory():
    flac = bytearray(tone(rate=8_000, kind="FLAC"))
    flac[21:26] = bytes([flac[21] | 0x0F, 0xFF, 0xFF, 0xFF, 0xFF])  # 2**36 - 1 samples
    with pytest.raises(me.DataFormatError, match="The audio becomes more than 4,294,967,296 bytes"):
        decoded(bytes(flac), Feature("Audio", {}), NamedFiles())


def test_a_video_that_becomes_too_large_is_refused_before_all_frames_are_decoded(tmp_path, monkeypatch):
    content = film(tmp_path / "a.mp4").read_bytes()
    size = video(content).nbytes
    few = video(content, frames=2)
    monkeypatch.setattr(video_module, "MOST_DECODED_BYTES", size - 1)
    with pytest.raises(me.DataFormatError, match="The video becomes more than"):
        video(content)
    assert (video(content, frames=2) == few).all()
