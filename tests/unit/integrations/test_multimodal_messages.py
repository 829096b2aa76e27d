"""Messages of a row, in all the shapes they come in, with every file that they name decoded."""

import base64
import json

import numpy as np
import PIL.Image
import pyarrow as pa
import pytest

from media import data_url, film, picture, shade_of, tone
from midepoch.integrations.multimodal_messages import Messages
from midepoch.stages.stage import name_of
from midepoch.storage.named_files import NamedFiles


def read(row, **options):
    files = options.pop("files", None) or NamedFiles(options.pop("data_folder", None))
    function = Messages(
        processor=lambda sample: sample,
        files=[files],
        column=options.pop("column", "messages"),
        media_columns={"image": "images", "audio": "audios", "video": "videos"} | options.pop("columns", {}),
        **options,
    )
    return function(row)


def user(*parts):
    return [{"role": "user", "content": list(parts)}]


def one(part, **options):
    """The part that a part becomes, and the sample."""
    sample = read({"messages": user(part)}, **options)
    return sample["messages"][0]["content"][0], sample


def test_text_stays_and_other_columns_come_along():
    messages = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hello", "name": "me"}]
    assert read({"messages": messages, "id": 3, "note": None}) == {
        "messages": messages,
        "id": 3,
        "note": None,
        "images": [],
        "audios": [],
        "videos": [],
    }


def test_messages_of_sharegpt_get_roles_and_contents():
    row = {
        "id": "7",
        "conversations": [
            {"from": "system", "value": "be kind"},
            {"from": "human", "value": "<image>\nwhat is it?", "weight": None},
            {"from": "gpt", "value": "a colour", "weight": 0.5},
        ],
        "image": picture(5),
    }
    sample = read(row, column="conversations", columns={"image": "image"})
    assert sample["conversations"] == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "<image>\nwhat is it?"},
        {"role": "assistant", "content": "a colour", "weight": 0.5},
    ]
    assert [shade_of(one) for one in sample["images"]] == [5]
    both = [{"role": "user", "content": "x", "from": None, "value": None}]  # what Arrow makes of files of both kinds
    assert read({"messages": both})["messages"] == [{"role": "user", "content": "x"}]


def test_a_list_of_parts():
    parts = [{"type": "text", "text": "a"}, "b", {"text": "c"}, {"type": "input_text", "text": "d"}]
    content = read({"messages": user(*parts)})["messages"][0]["content"]
    assert content == [{"type": "text", "text": letter} for letter in "abcd"]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image", "image": picture(7)},
        {"type": "image", "bytes": picture(7)},
        {"type": "image", "image": {"bytes": picture(7), "path": "gone.png"}},
        {"type": "image", "image": {"bytes": None, "path": "a/7.png"}},
        {"type": "image", "path": "a/7.png"},
        {"type": "image", "url": "a/7.png"},
        {"type": "image", "image": "a/7.png"},
        {"type": "image", "base64": base64.b64encode(picture(7)).decode()},
        {"image": "a/7.png"},
        {"type": "image_url", "image_url": {"url": data_url(picture(7))}},
        {"type": "image_url", "image_url": {"url": "a/7.png", "detail": "low"}},
        {"type": "image_url", "image_url": "a/7.png"},
        {"type": "input_image", "image_url": data_url(picture(7))},
        {"type": "image", "image": PIL.Image.new("RGB", (2, 2), (7, 0, 0))},
        {"type": "image", "image": np.full((2, 2, 3), 7, np.uint8)},
    ],
    ids=lambda part: ",".join(map(str, part)),
)
def test_C1_an_image_however_it_is_named(tmp_path, part):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "7.png").write_bytes(picture(7))
    for folder in (str(tmp_path), f"{tmp_path}/"):
        found, sample = one(part, data_folder=folder)
        assert (found["type"], list(found)) == ("image", ["type", "image"])
        assert shade_of(found["image"]) == 7
        assert [shade_of(image) for image in sample["images"]] == [7]
        assert found["image"] is sample["images"][0]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "input_audio", "input_audio": {"data": base64.b64encode(tone()).decode(), "format": "wav"}},
        {"type": "audio", "audio": tone(kind="FLAC")},
        {"type": "audio_url", "audio_url": {"url": data_url(tone(), "audio/wav")}},
        {"type": "audio", "path": "a.wav"},
        {"type": "audio", "audio": {"array": np.zeros(40, np.float32), "sampling_rate": 8000}},
    ],
)
def test_C1_audio(tmp_path, part):
    (tmp_path / "a.wav").write_bytes(tone())
    found, sample = one(part, data_folder=str(tmp_path))
    assert found["type"] == "audio"
    assert (found["audio"]["array"].shape, found["audio"]["sampling_rate"]) == ((40,), 8000)
    assert sample["audios"] == [found["audio"]]


def test_C1_videos(tmp_path):
    film(tmp_path / "a.mp4")
    for part in ({"type": "video", "video": "a.mp4"}, {"type": "video_url", "video_url": {"url": "a.mp4"}}):
        assert one(part, data_folder=str(tmp_path))[1]["videos"][0].shape == (10, 16, 32, 3)
    few = one({"type": "video", "video": "a.mp4"}, data_folder=str(tmp_path), video_frames=3)[0]["video"]
    assert few.shape == (3, 16, 32, 3)
    assert few.mean((1, 2, 3)).round(-1).tolist() == [0, 80, 180]  # 0, 4.5 (rounded to even) and 9 times 20


def test_parts_stand_for_the_files_of_a_column_in_order():
    image = {"type": "image"}
    messages = [
        {"role": "user", "content": [image, {"type": "text", "text": "and"}, {"type": "image", "image": picture(9)}]},
        {"role": "user", "content": [image]},
    ]
    sample = read({"messages": messages, "images": [picture(1), {"bytes": picture(2), "path": None}]})
    assert [shade_of(one) for one in sample["images"]] == [1, 9, 2]
    assert shade_of(sample["messages"][1]["content"][0]["image"]) == 2


def test_files_that_no_part_refers_to_belong_to_the_sample():
    row = {"messages": [{"role": "user", "content": "<image> what is it?"}], "pic": [picture(1), picture(2)]}
    sample = read(row, columns={"image": "pic"})
    assert [shade_of(one) for one in sample["images"]] == [1, 2]
    assert "pic" not in sample


@pytest.mark.parametrize("wrap", [lambda messages: messages, lambda messages: {"messages": messages}])
def test_messages_as_json_text(wrap):
    text = json.dumps(wrap(user({"type": "image_url", "image_url": {"url": data_url(picture(3))}}, "look")))
    sample = read({"chat": text}, column="chat")
    assert shade_of(sample["images"][0]) == 3
    assert sample["chat"][0]["content"][1] == {"type": "text", "text": "look"}


def test_arrow_structs_whose_other_fields_are_none_are_as_if_they_had_them_not():
    messages = user(
        {"type": "text", "text": "look"},
        {"type": "image", "image": {"bytes": picture(3), "path": None}},
        {"type": "image_url", "image_url": {"url": data_url(picture(4)), "detail": None}},
        {"type": "image_url", "image_url": {"url": None, "detail": None}},
        {"type": "input_audio", "input_audio": {"data": base64.b64encode(tone()).decode(), "format": "wav"}},
        {"type": "image"},
    )
    messages.append({"role": "assistant", "content": None, "name": None})
    plain = pa.array([messages]).to_pylist()[0]
    assert plain[0]["content"][0]["image_url"] is None or plain[0]["content"][0]["image_url"]["url"] is None
    sample = read({"messages": plain, "images": [picture(5), picture(6)]})
    assert [shade_of(one) for one in sample["images"]] == [3, 4, 5, 6]
    assert len(sample["audios"]) == 1
    assert sample["messages"][0]["content"][0] == {"type": "text", "text": "look"}
    assert sample["messages"][1] == {"role": "assistant"}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"id": 1, "chat": []}, "There is no column 'messages' with messages; the row has: id, chat"),
        ({"messages": None}, "The messages must be a list of dicts, got None"),
        ({"messages": "[{"}, "The messages are text that is not JSON"),
        ({"messages": '"hello"'}, "The messages must be a list of dicts, got 'hello'"),
        ({"messages": ["hello"]}, "A message must be a dict with a role and a content, got 'hello'"),
        ({"messages": [{"role": None, "content": "x"}]}, "A message must be a dict with a role and a content"),
        (
            {"messages": [{"role": "user", "content": 3}]},
            "content of a message must be text or a list of parts, got 3",
        ),
        ({"messages": user(3)}, "A part of a message must be text or a dict with a type, got 3"),
        ({"messages": user({"type": "hologram"})}, "has the type 'hologram'; it can be text, image, image_url"),
        ({"messages": user({"type": "text", "value": "x"})}, "A text part of a message has no text"),
        ({"messages": user({"type": "image"})}, "more image parts than the column 'images' has files"),
        (
            {"messages": user({"type": "image"}, {"type": "image"}), "images": [picture(1)]},
            "more image parts than the column 'images' has files",
        ),
        ({"messages": user({"type": "image"}), "images": [None]}, "The column 'images' has a null in place of a file"),
        ({"messages": user({"type": "image", "base64": "a*"})}, r"data that is not base64 .*: 'a\*'"),
        ({"messages": user({"type": "input_audio", "input_audio": {"data": "é"}})}, "data that is not base64"),
        ({"messages": user({"type": "image", "url": "data:image/png;base64,abc"})}, "data that is not base64"),
        ({"messages": user({"type": "image", "url": "data:image/svg+xml,<svg/>"})}, "A data URL must hold base64, got"),
    ],
)
def test_wrong_messages_raise(row, message):
    with pytest.raises(ValueError, match=message):
        read(row)


def test_errors_stay_short_whatever_they_are_about():
    for row in ({"messages": "x" * 100_000}, {"messages": [["x" * 100_000]]}, {"messages": [{"text": b"x" * 100_000}]}):
        with pytest.raises(ValueError, match=r"x") as caught:
            read(row)
        assert len(str(caught.value)) < 300


def test_an_error_names_the_path_in_the_row(tmp_path):
    (tmp_path / "no.png").write_bytes(b"no picture")
    parts = [
        ({"type": "image", "path": "gone.png"}, "gone.png"),
        ({"type": "image_url", "image_url": {"url": "no.png"}}, "no.png"),
        ({"type": "image", "image": {"bytes": b"no picture", "path": "was/here.png"}}, "was/here.png"),
    ]
    for part, path in parts:
        with pytest.raises(OSError, match=r"cannot") as caught:
            one(part, data_folder=str(tmp_path))
        assert caught.value.__notes__ == [f"midepoch: the file is {path}"]
    for value in (b"no picture", {"bytes": b"no picture", "path": None}, data_url(b"no picture")):
        with pytest.raises(PIL.UnidentifiedImageError) as caught:
            one({"type": "image", "image": value})
        assert not hasattr(caught.value, "__notes__")


def process(sample):
    return sample


def test_a_checkpoint_knows_it_by_the_processors_name():
    assert name_of(Messages(processor=process, column="messages", media_columns={})) == "process"


def test_lines_are_parsed_where_they_are_used():
    line = json.dumps({"messages": user("x"), "id": 4})
    assert read({"line": line}, of_lines=True)["id"] == 4
    with pytest.raises(ValueError, match=r"The line is not JSON .*: '{\"messages\"'"):
        read({"line": '{"messages"'}, of_lines=True)
    with pytest.raises(ValueError, match=r"A row must be a JSON object, got '\[1\]'"):
        read({"line": "[1]"}, of_lines=True)
