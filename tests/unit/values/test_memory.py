"""Memory that is used again: never while somebody can still see it, and never more than is allowed is kept."""

import gc
import random
import threading
from collections import deque

import numpy as np
import pyarrow as pa
import pytest
import torch

import midepoch as me
from files import write
from midepoch.values.memory import LARGE, Recycler, keep_memory, new_array


def address(array):
    return array.__array_interface__["data"][0]


def test_the_memory_of_an_array_that_is_gone_is_used_again():
    recycler = Recycler()
    first = recycler.array(LARGE)
    where = address(first)
    del first
    assert address(recycler.array(LARGE)) == where
    assert recycler.array(LARGE).flags.writeable


@pytest.mark.parametrize(
    "view",
    [
        lambda array: array[5:9],
        lambda array: array.view(np.int32).reshape(-1, 4)[1],
        lambda array: memoryview(array),
        torch.from_numpy,
        lambda array: torch.from_numpy(array).view(torch.int32).view(-1, 8)[3:],
    ],
)
def test_memory_that_somebody_sees_is_not_used_again(view):
    recycler = Recycler()
    array = recycler.array(LARGE)
    where, seen = address(array), view(array)
    del array
    gc.collect()
    assert address(recycler.array(LARGE)) != where
    del seen
    gc.collect()
    assert where in {address(one) for one in [recycler.array(LARGE), recycler.array(LARGE)]}


def test_small_arrays_are_left_to_the_system():
    assert Recycler().array(LARGE - 1).base is None


def test_no_more_is_kept_than_allowed_but_two_arrays_of_the_present_size():
    recycler = Recycler(most_kept=4 * LARGE)
    for size, count, kept in ((LARGE, 10, 4), (8 * LARGE, 5, 2), (2 * LARGE, 5, 2), (LARGE, 3, 3)):
        arrays = [recycler.array(size) for _ in range(count)]
        assert len({address(array) for array in arrays}) == count
        del arrays
        assert recycler.kept(size) == kept
    assert recycler.kept(8 * LARGE) == 0


def test_arrays_in_use_never_overlap_whatever_is_dropped():
    draw, recycler, held = random.Random(1), Recycler(most_kept=6 * LARGE), []
    for number in range(2000):
        array = recycler.array(LARGE * draw.randint(1, 4))
        array[:] = number % 251
        held.append((number % 251, array))
        while len(held) > draw.randint(0, 8):
            held.pop(draw.randrange(len(held)))
        assert all((one == value).all() for value, one in held[:: draw.randint(1, 3)])


@pytest.mark.parametrize("shape", [(3,), (64, 1000), (0, 5)])
def test_new_arrays_have_their_shape_and_dtype(shape):
    array = new_array(shape, np.dtype(np.int64))
    assert (array.shape, array.dtype, array.flags.c_contiguous) == (shape, np.int64, True)


@pytest.mark.parametrize("shuffled", [False, True], ids=["in order", "shuffled"])
@pytest.mark.parametrize("held", [0, 1, 5, 100])
def test_batches_that_a_loop_holds_are_never_overwritten(tmp_path, shuffled, held):
    width = LARGE // 4
    blocks = [
        pa.record_batch({"tokens": pa.FixedSizeListArray.from_arrays(pa.array(values), width)})
        for values in np.split(np.repeat(np.arange(60, dtype=np.int32), width), 6)
    ]
    dataset = me.read(write(tmp_path / "a.arrow", blocks)).with_format("torch")
    dataset = (dataset.shuffle(seed=1, window=30) if shuffled else dataset).batch(4)
    expected = [batch["tokens"][:, 0].tolist() for batch in dataset]
    dataset.set_epoch(0)
    kept, places = deque(maxlen=held), set()
    for batch, numbers in zip(dataset, expected, strict=True):
        assert batch["tokens"][:, 0].tolist() == numbers
        places.add(batch["tokens"].data_ptr())
        batch["tokens"][:] = -1 - numbers[0]
        kept.append((batch["tokens"], -1 - numbers[0]))
        assert all((tensor == value).all() for tensor, value in kept)
    assert len(places) < len(expected) or held >= len(expected)


def test_a_process_can_keep_its_memory():
    keep_memory()  # of this process too: it changes nothing that can be seen
    assert np.ones(1 << 20).sum() == 1 << 20


def test_threads_that_drop_arrays_of_many_sizes_disturb_nobody():
    recycler, errors = Recycler(most_kept=3 * LARGE), []

    def work(seed):
        draw = random.Random(seed)
        try:
            for number in range(500):
                array = recycler.array(LARGE * draw.randint(1, 5))
                array[:] = number % 251
                assert (array == number % 251).all()
        except BaseException as error:  # in a thread nobody would see it
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
