"""Samples with images from every source, through real workers: killed, cut, and gone on with by others."""

import io
import json
import logging
import os
from itertools import islice

import datasets
import numpy as np
import PIL.Image
import pyarrow as pa
import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

import midepoch as me
from chats import Chat, ids, process, table, write_jsonl, write_parquet
from media import film, tone
from midepoch.integrations import multimodal_messages as messages
from midepoch.testing import assert_resumes, same
from worlds import through_json

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),
    pytest.mark.filterwarnings("ignore:Length of IterableDataset:UserWarning"),
]
CHATS = [Chat(words=number % 9 + 1, images=number % 3, broken=number % 13 == 7) for number in range(60)]
WHOLE = [number for number, chat in enumerate(CHATS) if not chat.broken]
BROKEN = [number for number, chat in enumerate(CHATS) if chat.broken]


@pytest.fixture(autouse=True)
def _quiet():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_parquet(tmp_path_factory.mktemp("chats") / "data", CHATS, files=3, block=6)


def build(folder, lanes=4, **options):
    given = {"packing": True, "packing_length": 40, "packing_window": 8, "on_error": "skip", **options}
    processor = given.pop("processor", process)
    made = me.MultiModalIterableDataset(folder, processor=processor, **given)
    return made.lanes(lanes) if lanes else made


def one_item(item):
    return item


def arrow_file(path, kind):
    rows = table(CHATS)
    write = pa.ipc.new_stream if kind == "stream" else pa.ipc.new_file
    with pa.OSFile(str(path), "wb") as sink, write(sink, rows.schema) as writer:
        writer.write_table(rows, max_chunksize=7)
    return path


def hugging_face():
    rows = table(CHATS).to_pydict()
    rows["messages"] = [json.dumps(one) for one in rows["messages"]]
    features = datasets.Features(
        {
            "id": datasets.Value("int64"),
            "messages": datasets.Value("string"),
            "images": datasets.List(datasets.Image()),
        }
    )
    return datasets.Dataset(pa.Table.from_pydict(rows, schema=features.arrow_schema))


@pytest.fixture(params=["parquet", "stream", "file", "jsonl", "datasets", "numpy datasets", "saved", "midepoch"])
def source(request, folder, tmp_path):
    """A source, and the folder of its images."""
    kind = request.param
    if kind == "parquet":
        return folder, None
    if kind in ("stream", "file"):
        return arrow_file(tmp_path / "a.arrow", kind), None
    if kind == "jsonl":
        return write_jsonl(tmp_path / "lines", CHATS), tmp_path / "lines"
    if kind == "saved":
        hugging_face().save_to_disk(tmp_path / "saved")
        return me.fast_load_iterable_dataset(tmp_path / "saved"), None
    if kind == "midepoch":
        return me.read(folder).with_format("arrow"), None
    return hugging_face().with_format("numpy" if kind == "numpy datasets" else None), None


def test_C1_every_source_yields_the_same_samples(source, folder):
    rows, images = source
    options = {"packing": False, "shuffle": False, "lanes": 1}
    samples = list(build(rows, data_folder=images, **options))
    assert ids(samples) == WHOLE
    assert same(samples, list(build(folder, **options)))
    assert sorted(order := ids(list(build(rows, data_folder=images, packing=False, lanes=1)))) == WHOLE
    assert order != WHOLE, "a source is shuffled unless it shall not be"
    packs = build(rows, data_folder=images, lanes=2)
    assert sorted(ids(list(packs))) == WHOLE
    assert packs.metrics()["skipped"] == len(BROKEN)
    assert_resumes(packs, every=5)


def test_C1_json_lines_that_are_no_json_are_broken_samples(tmp_path):
    path = write_jsonl(tmp_path, CHATS)
    with path.open("a") as file:
        file.write('{"id": 99, "messages": [\n')
    dataset = build(path, data_folder=tmp_path, packing=False)
    assert sorted(ids(list(dataset))) == WHOLE
    assert dataset.metrics()["skipped"] == len(BROKEN) + 1
    assert any("The line is not JSON" in one["error"] for one in dataset.metrics()["skipped_samples"])
    with pytest.raises(me.DataFormatError, match=r"chats.jsonl, line 1: "):
        me.read(path)


def hear_and_see(sample):
    return {
        "input_ids": np.arange(3),
        "sound": sample["audios"][0]["array"][None] if sample["audios"] else None,
        "video": sample["videos"][0][None] if sample["videos"] else None,
    }


def test_C1_audio_and_video_by_path(tmp_path):
    film(tmp_path / "a.mp4")
    (tmp_path / "a.wav").write_bytes(tone())
    parts = [[{"type": "audio", "path": "a.wav"}], [{"type": "video", "path": "a.mp4"}], [{"type": "text", "text": ""}]]
    with (tmp_path / "rows.jsonl").open("w") as file:
        file.writelines(json.dumps({"messages": [{"role": "user", "content": one}]}) + "\n" for one in parts)
    dataset = me.MultiModalIterableDataset(
        tmp_path / "rows.jsonl",
        processor=hear_and_see,
        data_folder=tmp_path,
        video_frames=4,
        packing=True,
        packing_length=10,
        shuffle=False,
    )
    (pack,) = dataset
    assert (pack["sound"].shape, pack["video"].shape) == ((1, 40), (1, 4, 16, 32, 3))


def test_C1_C4_C5_cut_with_two_workers_and_resumed_with_three(folder):
    whole = list(build(folder).with_format("torch"))
    assert same(list(me.Loader(build(folder), num_workers=2)), whole)
    for cut in (1, 5, len(whole) - 1):
        first = me.Loader(build(folder), num_workers=2, prefetch_factor=4)
        got = list(islice(first, cut))
        second = me.Loader(build(folder), num_workers=3)
        second.load_state_dict(through_json(first.state_dict()))
        assert same(got + list(second), whole)


def test_C2_the_snapshot_of_each_worker_has_its_position(folder):
    def stateful():
        return StatefulDataLoader(build(folder, lanes=None), num_workers=2, batch_size=None, collate_fn=one_item)

    whole = list(stateful())
    assert sorted(ids(whole)) == WHOLE
    positions = []
    for cut in range(1, len(whole)):
        first = stateful()
        got = list(islice(iter(first), cut))
        state = first.state_dict()
        workers = state["_snapshot"]["_worker_snapshots"]
        assert len(workers) == 2
        shown = [worker["dataset_state"] for worker in workers.values()]
        for one in shown:
            assert isinstance(one["cur_idx"], int | None)
            assert set(one["packer"]) == {"lane", "window_start", "delivered"}
            if one["cur_idx"] is not None:
                assert one["cur_idx"] == one["packer"]["window_start"] + one["packer"]["delivered"]
        positions.append([(one["cur_idx"], one["packer"]["delivered"]) for one in shown])
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        if cut % 5 == 2:
            second = stateful()
            second.load_state_dict(torch.load(file, weights_only=True))
            assert same(got + list(second), whole)
        del first
        if cut > 8:
            break
    assert any(delivered for both in positions for _, delivered in both), "no cut was inside a window"
    moved = [both[0][0] for both in positions]
    assert moved == sorted(moved)
    assert moved[-1] > 0


def test_C2_cur_idx_is_the_row_at_which_reading_continues(folder):
    plain = build(folder, lanes=None, packing=False, on_error="raise", processor=one_item, shuffle=False).take(0)
    assert plain.state_dict()["cur_idx"] is None
    dataset = me.MultiModalIterableDataset(me.read(folder).take(7), processor=_number, shuffle=False)
    assert len(dataset) == 7
    seen = [(dataset.state_dict()["cur_idx"], dataset.state_dict()["packer"])]
    for _ in dataset:
        seen.append((dataset.state_dict()["cur_idx"], None))
    assert seen == [(number, None) for number in (*range(7), None)]


def _number(sample):
    return {"id": sample["id"], "input_ids": [1]}


@pytest.mark.parametrize(("workers", "method"), [(0, None), (2, "fork"), (1, "spawn")])
def test_C1_each_broken_sample_is_counted_once_an_epoch_with_file_and_row(folder, workers, method):
    dataset = build(folder)
    loader = me.Loader(dataset, num_workers=workers, multiprocessing_context=method)
    for epoch in range(1 if method == "spawn" else 2):
        assert sorted(ids(list(loader))) == WHOLE
        noted = [one for one in dataset.metrics()["skipped_samples"] if one["epoch"] == epoch]
        due = {f"row {number % 20} of part-{number // 20}.parquet" for number in BROKEN}
        assert {one["where"] for one in noted} == due
        assert len(noted) == len(due)
        assert all(one["error"].startswith("UnidentifiedImageError") for one in noted)
    assert dataset.metrics()["skipped"] == len(BROKEN) * (epoch + 1)


@pytest.mark.parametrize("start", ["in the process", "Loader", "DataLoader"])
def test_an_epoch_of_broken_samples_only_raises(tmp_path, start):
    path = write_jsonl(tmp_path, [Chat(words=3, images=1) for _ in range(60)])
    dataset = build(path, data_folder=tmp_path / "elsewhere", lanes=None)  # the images are in another folder
    loops = {
        "in the process": dataset,
        "Loader": me.Loader(dataset, num_workers=2),
        "DataLoader": torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=2),
    }
    with pytest.raises(me.TooManySkippedError) as caught:
        list(loops[start])
    # the second worker of a plain DataLoader has read the other half
    assert f"{30 if start == 'DataLoader' else 60} samples, and nothing is left in epoch 0" in str(caught.value)
    assert "of chats.jsonl: NoDataError: " in str(caught.value)
    assert dataset.metrics()["skipped_samples"][0]["error"].split("; the file is ")[1] in path.read_text()


def test_max_skipped_is_checked_at_once_and_needs_skipping(folder):
    with pytest.raises(ValueError, match=r"max_skipped is 1\.5; as a float it is a share"):
        build(folder, max_skipped=1.5)
    with pytest.raises(ValueError, match="max_skipped is 3, but nothing is skipped: pass on_error='skip' with it"):
        build(folder, max_skipped=3, on_error="raise")
    with pytest.raises(me.TooManySkippedError, match=r"more than max_skipped=3\. The first is row 7 of part-0"):
        list(build(folder, max_skipped=3, shuffle=False, lanes=1))
    assert sorted(ids(list(build(folder, max_skipped=len(BROKEN), packing_strategy=None)))) == WHOLE


def test_C1_a_broken_sample_raises_with_file_and_row_unless_asked_otherwise(folder):
    for workers in (0, 2):
        with pytest.raises(PIL.UnidentifiedImageError) as caught:
            list(me.Loader(build(folder, on_error="raise", shuffle=False, lanes=1), num_workers=workers))
        message = " ".join([*getattr(caught.value, "__notes__", ()), str(caught.value)])
        assert "midepoch: in process(process), at row 7 of part-0.parquet" in message


def remember_the_process(sample):
    return {"id": sample["id"], "input_ids": [1], "process": os.getpid()}


def test_images_are_decoded_in_the_worker(folder, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("decoded in the main process")

    main = os.getpid()
    right = messages.image
    monkeypatch.setattr(messages, "image", lambda value: refuse() if os.getpid() == main else right(value))
    samples = list(me.Loader(build(folder, packing=False, processor=remember_the_process), num_workers=2))
    assert sorted(ids(samples)) == WHOLE
    assert main not in {sample["process"] for sample in samples}
    assert len({sample["process"] for sample in samples}) == 2


def test_images_are_decoded_only_for_rows_that_are_used(folder, monkeypatch):
    decoded = []
    right = messages.image
    monkeypatch.setattr(messages, "image", lambda value: decoded.append(value) or right(value))
    good = [chat for number, chat in enumerate(CHATS) if number < 7]
    rows = me.read(folder).take(20).filter(lambda row: row["id"] in (4, 5))
    dataset = me.MultiModalIterableDataset(rows, processor=process, shuffle=False)
    assert decoded == []
    assert ids(list(dataset)) == [4, 5]
    assert len(decoded) == good[4].images + good[5].images
    decoded.clear()
    straight = me.MultiModalIterableDataset(me.read(folder).take(7), processor=process, shuffle=False)
    list(islice(straight, 5))
    state = straight.state_dict()
    decoded.clear()
    resumed = me.MultiModalIterableDataset(me.read(folder).take(7), processor=process, shuffle=False)
    resumed.load_state_dict(state)
    assert ids(list(resumed)) == [5, 6]
    assert len(decoded) == good[5].images + good[6].images, "what was delivered before is not decoded again"


@pytest.mark.parametrize(
    ("padding", "packing"), [("flatten", True), ("flatten", False), ("right", True), ("left", False)]
)
def test_C1_batches_by_the_collator_resume_too(folder, padding, packing):
    def loader(workers):
        collate = me.MultiModalCollator(padding=padding, pad=0)
        return me.Loader(build(folder, packing=packing), batch_size=3, num_workers=workers, collate_fn=collate)

    whole = list(loader(0))
    images = sum(CHATS[number].images for number in WHOLE)
    assert sum(len(batch["pixel_values"]) for batch in whole if batch["pixel_values"] is not None) == images
    learned = sum(int((batch["labels"] != -100).sum()) for batch in whole)
    samples = list(build(folder, packing=False))
    assert learned == sum(int((sample["labels"] != -100).sum()) for sample in samples)
    first = loader(2)
    got = list(islice(first, 2))
    second = loader(0)
    second.load_state_dict(through_json(first.state_dict()))
    assert same(got + list(second), whole)


def test_states_of_other_settings_are_refused(folder):
    state = build(folder).state_dict()
    for change, message in (
        ({"packing_length": 41}, "length"),
        ({"packing_window": 9}, "window"),
        ({"data_seed": 1}, "seed"),
        ({"processor": _number}, "process"),
        ({"on_error": "raise"}, "on_error"),
        ({"video_frames": 3}, "video_frames"),
        ({"filter_overlong": False}, "overlong"),
    ):
        with pytest.raises(me.CheckpointMismatchError, match=message):
            build(folder, **change).load_state_dict(state)
    moved = build(folder, data_folder="/elsewhere")
    moved.load_state_dict(state)


@pytest.fixture
def as_rank(monkeypatch):
    """Launch this process as a rank of two."""

    def launch(rank):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")

    return launch


def only_id(row):
    return {"id": row["id"]}


def test_a_mixture_takes_over_the_shard_of_its_parts(folder, as_rank):
    got = []
    for rank in range(2):
        as_rank(rank)
        part = build(folder, packing=False, lanes=None, shuffle=False)
        mixed = me.mix([part, me.read(folder).map(only_id)], stop="all")
        shard = ids(list(mixed))
        assert ids(list(mixed.shard(2, rank))) == shard
        got += shard
    assert len(got) == len(WHOLE) + len(CHATS)


def test_sources_that_cannot_be_are_refused(folder):
    filtered = me.read(folder).filter(lambda row: True)
    with pytest.raises(ValueError, match="shuffle after filter is not possible") as caught:
        build(filtered)
    assert "pass shuffle=False" in caught.value.__notes__[0]
    assert sorted(ids(list(build(filtered, shuffle=False)))) == WHOLE
    with pytest.raises(TypeError, match=r"from_hf needs a datasets.Dataset, got IterableDataset"):
        build(hugging_face().to_iterable_dataset())
    with pytest.raises(ValueError, match="from_hf needs one split"):
        build(datasets.DatasetDict({"train": hugging_face()}))


def test_parts_of_a_mixture_count_their_own_broken_samples(folder):
    parts = [build(folder, packing=False, lanes=None, shuffle=False) for _ in range(2)]
    mixed = me.mix(parts, weights=[0.5, 0.5], seed=1, stop="all")
    assert len(list(mixed)) == 2 * len(WHOLE)
    assert [part.metrics()["skipped"] for part in parts] == [len(BROKEN)] * 2
    source = me.mix([me.read(folder), me.read(folder)], weights=[0.5, 0.5], stop="all")
    dataset = build(source, shuffle=False, lanes=2)
    assert sorted(ids(list(dataset))) == sorted(WHOLE * 2)
    assert_resumes(dataset, every=9)


def test_a_state_in_plain_terms_does_not_change_by_loading_where_a_filter_empties_a_lane(folder):
    dataset = me.fast_load_iterable_dataset(_saved(folder)).filter(_is_early).lanes(2)
    assert_resumes(dataset)


def _is_early(row):
    return row["id"] < 5


def _saved(folder):
    path = folder.parent / "saved"
    if not path.exists():
        hugging_face().save_to_disk(path)
    return path
