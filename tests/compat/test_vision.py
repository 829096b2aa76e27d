"""A folder of images in a store against a local one. The example is in test_examples.py."""

from itertools import islice

import numpy as np
import pytest

import midepoch as me
import s3
from media import picture

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
