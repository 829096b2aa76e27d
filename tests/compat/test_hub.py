"""Files on a Hugging Face hub, which runs on loopback: exact, resumed, listed once, and without a token in sight."""

import json
import logging
import os
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import pytest

import hub as loopback
import midepoch as me
import ranks
from objects import QUICK, numbered

TOKEN = "hf_aTokenThatNobodyMaySee"
GLOB = "hf://datasets/org/name/**/*.parquet"
FILES, ROWS = 6, 40


def content(first=0):
    """Parquet files in two folders, and files of other kinds."""
    files = {
        f"data/{'train' if n % 2 else 'more'}/part-{n}.parquet": numbered(first + n * ROWS, first + (n + 1) * ROWS)
        for n in range(FILES)
    }
    return {**files, "README.md": b"# data"}


@pytest.fixture
def hub(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    with loopback.serving() as server:
        server.token = TOKEN
        server.push("org/name", content())
        yield server


def opened(hub, url=GLOB, **options):
    return me.read(url, storage_options=hub.options, **options)


def ids(items):
    return [number for item in items for number in (item["id"] if isinstance(item["id"], list) else [item["id"]])]


def local(folder, files):
    for name, one in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(one)
    return me.read(str(folder / "**/*.parquet"))


def test_rows_are_those_of_local_files_and_a_file_takes_one_question_of_the_hub(hub, tmp_path):
    dataset = opened(hub)
    assert ids(dataset) == ids(local(tmp_path, content()))
    hub.asked.clear()
    list(dataset.shuffle(seed=1))
    assert hub.counts()["resolve"] == FILES, "the address that the hub gave is used again"
    assert set(hub.counts()) == {"resolve", "cdn"}, "no listing and no question of a version"
    assert {one.headers.get("authorization") for one in hub.asked if one.place == "cdn"} == {None}


def test_a_run_resumes_exactly_with_other_workers_at_its_commit(hub, tmp_path):
    whole = ids(local(tmp_path, content()).shuffle(seed=1).lanes(2))
    # A server of forks may be older than this test, with another environment.
    first = me.Loader(opened(hub).shuffle(seed=1).lanes(2), 1, num_workers=2, multiprocessing_context="spawn")
    got = [batch["id"].item() for batch in islice(first, 101)]
    state = json.loads(json.dumps(first.state_dict()))
    before, commit = opened(hub), hub.branches["org/name"]["main"]
    hub.push("org/name", content(first=1000))
    assert ids(before) == ids(local(tmp_path, content())), "the branch has moved, the dataset has not"
    with pytest.raises(me.CheckpointMismatchError):
        opened(hub).shuffle(seed=1).lanes(2).load_state_dict(state)
    second = me.Loader(opened(hub, GLOB.replace("name/", f"name@{commit}/")).shuffle(seed=1).lanes(2), batch_size=1)
    second.load_state_dict(state)
    assert [*got, *(batch["id"].item() for batch in second)] == whole


@pytest.mark.parametrize("kind", ["info", "tree", "resolve", "cdn"])
def test_a_busy_hub_is_asked_again_when_it_says(hub, kind):
    began, refused = [], []

    def spoil(asked):
        if asked.kind != kind or ("part-3" not in asked.path and kind in ("resolve", "cdn")):
            return None
        began.append(time.monotonic())
        if time.monotonic() - began[0] >= 0.95:
            return None
        refused.append(asked)
        return 429, {"Retry-After": "1"}

    hub.spoil = spoil
    assert sorted(ids(opened(hub))) == list(range(FILES * ROWS))
    assert len(refused) == 1, "earlier questions would have been refused too"


def test_an_address_that_expires_is_asked_for_again(hub, monkeypatch):
    dataset = opened(hub, read_ahead=0)
    rows = iter(dataset)
    got = ids(islice(rows, 15))
    monkeypatch.setattr(loopback, "SIGNATURE", "another")
    assert [*got, *ids(rows)] == ids(opened(hub))
    assert any(one.place == "cdn" and one.query == "Signature=signature-of-the-cdn" for one in hub.asked)


def test_tokens_and_signed_addresses_are_in_no_error_state_log_or_index(hub, tmp_path, caplog, monkeypatch):
    caplog.set_level(logging.DEBUG, "midepoch")
    said = []
    dataset = opened(hub, index_dir=tmp_path).shuffle(seed=1)
    list(islice(dataset, 3))
    said += [repr(dataset), json.dumps(dataset.state_dict())]
    monkeypatch.setattr("midepoch.storage.store.RetryPolicy", lambda: QUICK)
    for status, wanted in ((500, "does not answer"), (403, "refuses access"), (404, "was changed")):
        hub.spoil = lambda asked, status=status: (status, {}) if asked.place == "cdn" else None
        with pytest.raises(me.MidepochError, match=wanted) as caught:
            list(opened(hub, index_dir=tmp_path))
        said += [str(caught.value), repr(caught.value.__cause__)]
    hub.spoil = lambda _: None
    for token in ("hf_anotherTokenOfMine", TOKEN):
        options = {**hub.options, "token": token}
        hub.token = "hf_changedMeanwhile"
        with pytest.raises(me.StoreError, match=r"refuses access to hf://.* 401 ") as caught:
            me.read(GLOB, storage_options=options)
        said.append(str(caught.value))
    text = "\n".join([*said, caplog.text])
    index = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for secret in (TOKEN, "hf_anotherTokenOfMine", loopback.SIGNATURE):
        assert secret not in text
        assert secret.encode() not in index


def test_ranks_list_the_hub_once(hub, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    opened(hub)
    alone = hub.counts()["tree"]
    hub.asked.clear()
    ranks.run("rank_steps.listing", [(4, GLOB, hub.options, str(out), 60.0)], out)
    found = [json.loads(path.read_text()) for path in out.glob("listed-*.json")]
    assert [rows for _, rows, _ in found] == [FILES * ROWS] * 4
    assert hub.counts()["tree"] == alone
    assert hub.counts()["resolve"] == FILES


def test_the_endpoint_and_the_token_of_the_environment_are_used(hub):
    code = f"import midepoch as me; print(len(me.read({GLOB!r})), me.read({GLOB!r}).head(1)[0]['id'])"
    source = str(Path(me.__file__).parents[1])
    environment = {**os.environ, "HF_ENDPOINT": hub.endpoint, "HF_TOKEN": TOKEN, "PYTHONPATH": source}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split() == [str(FILES * ROWS), "0"], done.stderr
    data = [one for one in hub.asked if one.place == "hub" and "/datasets/" in one.path]
    assert {one.headers.get("authorization") for one in data} == {f"Bearer {TOKEN}"}
