"""image_folder: classes by folder, images as the worker decodes them, and names in every error."""

from itertools import islice

import pytest
from fsspec.implementations.memory import MemoryFileSystem

import midepoch as me
from media import picture, shade_of
from midepoch.testing import assert_elastic

CLASSES = {"dog": 7, "cat": 9, "eel": 3}


def content():
    """The bytes of each image by its path. Some lie deeper, and endings differ."""
    shade = 0
    for label, number in CLASSES.items():
        for one in range(number):
            shade += 10
            below = f"{label}/deeper" if one % 3 == 2 else label
            kind, ending = (("PNG", "png"), ("JPEG", "JPEG"), ("BMP", "bmp"))[one % 3]
            yield f"{below}/{one}.{ending}", picture(shade, kind), shade


@pytest.fixture
def folder(tmp_path):
    for name, image, _ in content():
        path = tmp_path / "train" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image)
    return tmp_path / "train"


def facts(rows):
    return [(row["path"], row["label"]) for row in rows]


def test_F5_rows_are_those_of_the_files_with_labels_by_the_sorted_folders(folder):
    dataset = me.image_folder(folder)
    assert dataset.class_names == ("cat", "dog", "eel")
    assert dataset.features["label"].int2str(1) == "dog"
    assert dataset.column_names == ["image", "label", "path"]
    assert len(dataset) == sum(CLASSES.values())
    rows = list(dataset)
    names = sorted((name for name, *_ in content()), key=lambda name: name.split("/"))
    assert facts(rows) == [(name, sorted(CLASSES).index(name.split("/")[0])) for name in names]
    shades = {name: shade for name, _, shade in content()}
    for row in rows:
        assert row["image"].mode == "RGB"
        assert abs(shade_of(row["image"]) - shades[row["path"]]) < 4  # some are JPEG


def test_images_can_stay_bytes_and_files_of_columns_that_are_not_wanted_are_not_read(folder):
    stored = {name: image for name, image, _ in content()}
    for row in me.image_folder(folder, decoder=None):
        assert row["image"] == {"bytes": stored[row["path"]], "path": row["path"]}
    dataset = me.image_folder(folder, decoder=None).select_columns(["path", "label"])
    for path in folder.rglob("*.*"):
        path.unlink()
    assert len(list(dataset)) == len(stored)


@pytest.mark.parametrize("level", ["block", "row"])
def test_F5_a_shuffled_folder_resumes_exactly_on_other_readers(folder, level):
    dataset = me.image_folder(folder, decoder="turbo", size=4).shuffle(seed=3, level=level)
    assert dataset.class_names == ("cat", "dog", "eel")
    assert sorted(facts(dataset)) == sorted(facts(me.image_folder(folder)))
    assert_elastic(dataset.lanes(4), [(2, 1), (1, 3)])
    loader = me.Loader(dataset, batch_size=2)
    assert next(iter(loader))["image"].shape == (2, 4, 4, 3)


def test_class_names_say_what_labels_mean_in_a_folder_that_lacks_classes(folder):
    for path in list((folder / "dog").rglob("*.*")):
        path.unlink()
    with pytest.raises(me.NoDataError, match=r"train/dog has no images .*remove the folder"):
        me.image_folder(folder)
    for path in sorted((folder / "dog").rglob("*"), reverse=True):
        path.rmdir()
    (folder / "dog").rmdir()
    assert {row["label"] for row in me.image_folder(folder)} == {0, 1}
    known = me.image_folder(folder, class_names=["ape", "cat", "dog", "eel"])
    assert {row["label"] for row in known} == {1, 3}
    assert known.features["label"].names == ["ape", "cat", "dog", "eel"]
    with pytest.raises(me.NoDataError, match=r"train/eel is a class that class_names does not have\. Add 'eel'"):
        me.image_folder(folder, class_names=["ape", "cat", "dog"])
    with pytest.raises(ValueError, match="has a name twice"):
        me.image_folder(folder, class_names=["cat", "eel", "cat"])


def test_what_is_no_image_of_a_class_is_named(folder, caplog):
    (folder / "notes.txt").write_text("notes")
    (folder / "cat" / "Thumbs.db").write_text("thumbs")
    assert len(me.image_folder(folder)) == sum(CLASSES.values())
    assert "has 2 files that are no images by their names, such as" in caplog.text
    (folder / "0.png").write_bytes(picture(1))
    with pytest.raises(me.NoDataError, match=r"0\.png lies in .*train itself, so it has no class\. Move it"):
        me.image_folder(folder)
    (folder / "0.png").rename(folder / "eel" / "empty.png")
    (folder / "eel" / "empty.png").write_bytes(b"")
    with pytest.raises(me.DataFormatError, match=r"eel/empty\.png is empty\. Restore it"):
        me.image_folder(folder)


def test_a_folder_without_classes_is_refused(folder, tmp_path):
    with pytest.raises(me.NoDataError, match=r"splits, not classes.*image_folder\('.*train'\)"):
        me.image_folder(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(me.NoDataError, match=r"has no file \(it is empty\)"):
        me.image_folder(tmp_path / "empty")
    (tmp_path / "empty" / "a.txt").write_text("text")
    with pytest.raises(me.NoDataError, match="has no images in subfolders"):
        me.image_folder(tmp_path / "empty")
    with pytest.raises(me.NoDataError, match=r"has images, .*midepoch\.image_folder\(folder\).*guides/vision\.md"):
        me.read(folder)


def test_a_broken_changed_or_missing_image_is_named(folder):
    dataset = me.image_folder(folder)
    path = folder / "cat" / "1.JPEG"
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(me.DataChangedError, match=r"cat/1\.JPEG was changed while it was in use"):
        list(dataset)
    path.unlink()
    with pytest.raises(me.DataChangedError, match=r"cat/1\.JPEG cannot be read: .*restore it"):
        list(dataset)
    path.write_bytes(b"no image")
    with pytest.raises(Exception, match="cannot identify") as caught:
        list(me.image_folder(folder))
    assert any("the file is cat/1.JPEG. Restore it, or leave out the row" in note for note in caught.value.__notes__)
    assert any("at row 1 of cat" in note for note in caught.value.__notes__)
    left = me.image_folder(folder).without([("cat", 1)])
    assert len(list(left)) == sum(CLASSES.values()) - 1


def test_a_state_names_the_class_that_changed_and_notices_a_renamed_image(folder):
    dataset = me.image_folder(folder)
    list(islice(dataset, 3))
    state = dataset.state_dict()
    (folder / "cat" / "0.png").rename(folder / "cat" / "00.png")
    with pytest.raises(me.CheckpointMismatchError, match="images of stage 1, read, was"):
        me.image_folder(folder).load_state_dict(state)
    (folder / "cat" / "00.png").unlink()
    with pytest.raises(me.CheckpointMismatchError, match="cat has 8 rows; the checkpoint was taken when it had 9"):
        me.image_folder(folder).load_state_dict(state)


def test_a_class_of_a_store_without_images_is_named(tmp_path):
    system = MemoryFileSystem()
    system.store.clear()
    system.pipe({"/labels/cat/0.png": picture(1), "/labels/dog/notes.txt": b"none"})
    with pytest.raises(me.NoDataError, match="labels/dog has no images"):
        me.image_folder("memory://labels")
    system.rm("/labels/dog", recursive=True)
    assert facts(me.image_folder("memory://labels")) == [("cat/0.png", 0)]
