"""Each stage says itself what callers need: its name, functions, counts, groups and schema."""

from functools import partial, wraps

import pytest

from midepoch.stages.flow import Context
from midepoch.stages.stage import Call, name_of


def function(item):
    return item


def test_an_error_of_a_function_names_function_stage_and_row():
    def fails(item):
        raise KeyError(item)

    context = Context(seed=0, epoch=0, rows_until=2, locate=lambda key: ("a.arrow", key))
    with pytest.raises(KeyError) as raised:
        Call(function=fails, stage="map", number=1)("x", 1234, context)
    (note,) = raised.value.__notes__
    assert note.endswith("<locals>.fails), at row 1,234 of a.arrow")


def test_a_function_gets_the_same_random_numbers_for_the_same_item():
    def draw(item, rng):
        return int(rng.integers(1 << 60))

    def drawn(salt, key, epoch):
        context = Context(seed=5, epoch=epoch, rows_until=0, locate=lambda key: ("file", key))
        return Call(function=draw, stage="map", number=1, with_rng=True, salt=salt)(None, key, context)

    assert drawn(1, 7, 0) == drawn(1, 7, 0)
    assert len({drawn(1, 7, 0), drawn(2, 7, 0), drawn(1, 8, 0), drawn(1, 7, 1)}) == 4


def test_the_name_of_a_function_is_that_of_what_it_wraps():
    @wraps(function)
    def wrapped(item):
        return function(item)

    class Callable:
        def __call__(self, item):
            return item

    assert name_of(function) == name_of(wrapped) == "function"
    assert name_of(partial(function)) == "partial(function)"
    assert name_of(Callable()).endswith("Callable")
