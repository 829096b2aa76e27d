"""A folder of images in a store against a local one, and frames of episodes. The example is in test_examples.py."""

from itertools import islice

import numpy as np
import pytest

import midepoch as me
import s3
from media import episodes, picture

CLASSES = {"cat": 9, "dog": 7}


def test_F5_a_folder_of_a_store_has_the_rows_of_a_local_one_and_takes_its_state(s3_port, proxy, tmp_path):
    content = {f"{label}/{n}.png": picture(9 * n, "PNG") for label, count in CLASSES.items() for n in range(count)}
    for name, image in content.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(image)
    s3.put_all(s3_port, "pictures", {f"train/{name}": image for name, image in content.items()})
    stored = me.image_folder("s3://pictures/train", storage_options=proxy.options).shuffle(seed=1)
    local = me.image_folder(tmp_path).shuffle(seed=1)
    rows = list(local)
    for row, other in zip(rows, stored, strict=True):
        assert (row["path"], row["label"]) == (other["path"], other["label"])
        assert np.array_equal(row["image"], other["image"])
    begun = iter(me.image_folder(tmp_path).shuffle(seed=1))
    got = [row["path"] for row in islice(begun, 5)]
    stored.load_state_dict(begun.state_dict())
    assert [*got, *(row["path"] for row in stored)] == [row["path"] for row in rows]
    s3.put_all(s3_port, "pictures", {"train/cat/0.png": picture(255, "PNG")})
    with pytest.raises(me.DataChangedError, match=r"train/cat/0\.png was changed"):
        list(stored)


def greys(rows, camera):
    """The grey of each frame of a camera, with what it should be."""
    shift = 20 if camera == "wrist" else 0
    for row in rows:
        assert row[camera].shape == (48, 64, 3)
        yield round(row[camera].mean()), 5 * row["frame_index"] + 2 * row["episode_index"] + shift


def test_F5_frames_of_episodes_are_those_of_their_times_and_the_same_after_a_resume(tmp_path, s3_port, proxy):
    rows = episodes(tmp_path)

    def build(data_folder=tmp_path, **options):
        dataset = me.read(tmp_path / "data").shuffle(seed=1).lanes(2)
        return dataset.decode(video=["front", "wrist"], at="timestamp", data_folder=data_folder, **options)

    whole = list(build())
    assert len(whole) == len(rows)
    for camera in ("front", "wrist"):
        assert all(abs(grey - expected) <= 2 for grey, expected in greys(whole, camera))
    first = me.Loader(build(), batch_size=1, num_workers=2)
    got = list(islice(first, 25))
    second = me.Loader(build(), batch_size=1, num_workers=1)
    second.load_state_dict(first.state_dict())
    got += list(second)
    for batch, row in zip(got, whole, strict=True):
        assert np.array_equal(batch["front"][0], row["front"])
        assert np.array_equal(batch["wrist"][0], row["wrist"])
    files = {path.relative_to(tmp_path).as_posix(): path.read_bytes() for path in (tmp_path / "videos").rglob("*.mp4")}
    s3.put_all(s3_port, "episodes", files)
    stored = build("s3://episodes", storage_options=proxy.options)
    for one, row in zip(islice(stored, 9), whole, strict=False):
        assert np.array_equal(one["wrist"], row["wrist"])


def test_frames_before_and_after_a_time_and_frames_by_number(tmp_path):
    episodes(tmp_path, number=1)

    def around(row):
        return {
            "times": [row["timestamp"], row["timestamp"] + 0.1],
            "numbers": [row["frame_index"], 39],
            "again": row["front"],
        }

    dataset = me.read(tmp_path / "data").take(30).map(around)
    for row in dataset.decode(video="front", at="times", data_folder=tmp_path):
        assert row["front"].shape == (2, 48, 64, 3)
        assert row["front"][1].mean() - row["front"][0].mean() == pytest.approx(10, abs=2)
    for row in dataset.decode(video="front", frames="numbers", data_folder=tmp_path):
        assert row["front"][1].mean() == pytest.approx(195, abs=2)
        assert row["front"][0].mean() == pytest.approx(5 * row["frame_index"], abs=2)
    even = next(iter(dataset.decode(video=["front", "again"], frames=3, data_folder=tmp_path)))
    assert [round(frame.mean() / 100) for frame in even["again"]] == [0, 1, 2]


def test_a_video_that_cannot_be_decoded_is_named(tmp_path):
    episodes(tmp_path, number=1)
    dataset = me.read(tmp_path / "data")

    def raised(dataset, **options):
        with pytest.raises((me.MidepochError, ValueError, TypeError)) as caught:
            list(dataset.decode(**{"data_folder": tmp_path, **options}))
        return "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])

    late = raised(dataset.map(lambda row: {"timestamp": row["timestamp"] + 1.5}), video="front", at="timestamp")
    assert "no frame at 2.05 s: it ends at 2 s. Correct the time" in late
    assert "the file is videos/front/episode_000000.mp4. Restore it, or leave out the row" in late
    assert "row 11 of episode_000000.parquet" in late
    assert "is null" in raised(dataset.map(lambda _: {"timestamp": None}), video="front", at="timestamp")
    assert "no column 'back'. There are: episode_index" in raised(dataset, video="back", at="timestamp")
    assert "no column 'time'" in raised(dataset.map(dict), video="front", at="time")
    assert "needs either at=" in raised(dataset, video="front")
    assert "needs either at=" in raised(dataset, video="front", at="timestamp", frames=3)
    assert "pass video=" in raised(dataset, at="timestamp")
    assert "data_folder" in raised(dataset, video="front", at="timestamp", data_folder=None)
    (tmp_path / "videos" / "front" / "episode_000000.mp4").write_bytes(b"no video")
    assert "the file is videos/front/episode_000000.mp4" in raised(dataset, video="front", at="timestamp")
    (tmp_path / "videos" / "front" / "episode_000000.mp4").unlink()
    assert "episode_000000.mp4 cannot be read" in raised(dataset, video="front", at="timestamp")
