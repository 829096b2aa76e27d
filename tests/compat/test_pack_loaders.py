"""Packs through real worker processes: killed, cut and resumed by others, they are those of one process."""

import io
import json
import logging
import os
import signal
from itertools import islice

import numpy as np
import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

import midepoch as me
from midepoch.testing import same
from worlds import as_arrays, write_documents

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),
    pytest.mark.filterwarnings("ignore:Length of IterableDataset:UserWarning"),
]
STRATEGIES = ["best_fit", "first_fit", "balanced", "concat"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    lengths = np.random.default_rng(9).integers(0, 30, 150).tolist()
    lengths[40] = 400
    return write_documents(tmp_path_factory.mktemp("world") / "data", lengths, block=10)


@pytest.fixture(params=STRATEGIES)
def build(request, folder):
    def build(lanes=4):
        rows = me.read(folder).shuffle(1, window=20).lanes(lanes) if lanes else me.read(folder).shuffle(1, window=20)
        return rows.map(as_arrays).pack(32, strategy=request.param, window=16, eos=7, pad=9).with_format("numpy")

    return build


def through_json(state):
    return json.loads(json.dumps(state))


def test_C4_C5_cut_with_two_workers_and_resumed_with_three(build):
    whole = list(build())
    assert same(list(me.Loader(build(), num_workers=2)), whole)
    for cut in (1, 7, 20, len(whole) - 1):
        first = me.Loader(build(), num_workers=2, prefetch_factor=4)
        got = list(islice(first, cut))
        second = me.Loader(build(), num_workers=3)
        second.load_state_dict(through_json(first.state_dict()))
        got += list(islice(second, 2))
        third = build()
        third.load_state_dict(through_json(second.state_dict()))
        assert same(got + (list(third) if len(got) < len(whole) else []), whole)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # torch reports the kill once more
def test_C4_a_worker_killed_inside_a_window_takes_nothing_with_it(build):
    logging.disable(logging.CRITICAL)
    whole = list(build())
    loader = me.Loader(build(), num_workers=2, prefetch_factor=1)
    others = {process.pid for process in torch.multiprocessing.active_children()}
    iterator = iter(loader)
    got = list(islice(iterator, 9))
    inside = [cursor[-1] for _, cursor in loader.state_dict()["cursors"]]
    assert any(inside), "no lane stands inside a window: the test would prove nothing"
    os.kill(min({process.pid for process in torch.multiprocessing.active_children()} - others), signal.SIGKILL)
    with pytest.raises(RuntimeError, match=r"killed|exited"):
        got.extend(iterator)
    del iterator
    resumed = me.Loader(build(), num_workers=3)
    resumed.load_state_dict(through_json(loader.state_dict()))
    assert same(got + list(resumed), whole)
    loader.load_state_dict(loader.state_dict())
    assert same(got + list(loader), whole)
    logging.disable(logging.NOTSET)


def one_item(item):
    return item


def test_C4_stateful_dataloader_with_two_workers(build):
    def stateful():
        return StatefulDataLoader(build(lanes=None), num_workers=2, batch_size=None, collate_fn=one_item)

    whole = list(stateful())
    for cut in (1, 8, 21):
        first = stateful()
        got = list(islice(iter(first), cut))
        file = io.BytesIO()
        torch.save(first.state_dict(), file)
        file.seek(0)
        second = stateful()
        second.load_state_dict(torch.load(file, weights_only=True))
        assert same(got + list(second), whole)
