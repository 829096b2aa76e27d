"""Checkpoints of other mixtures: what is moved, and what is refused."""

import pytest

import midepoch as me
from mixtures import fingerprint, mixture, odd, odd_batches, part


def test_a_checkpoint_of_the_same_mixture_needs_no_move():
    adopted = mixture().adopt(fingerprint(mixture()))
    assert (adopted.move, adopted.changes) == (None, ())


def test_other_weights_begin_another_schedule_and_keep_every_position():
    adopted = mixture(weights=[1, 1]).adopt(fingerprint(mixture()))
    assert adopted.changes == ("a has weight 1 instead of 2",)
    assert adopted.move((4, 0, 4, 2, 1, 3, 1)) == (0, 0, 4, 0, 1, 3, 1)


def test_a_new_part_starts_from_its_beginning_and_a_removed_one_is_forgotten():
    changed = mixture({"b": part("b", 6, odd_batches), "c": part("c")})
    adopted = changed.adopt(fingerprint(mixture()))
    assert adopted.changes == (
        "b has weight 2 instead of 1",
        "c is new and starts from its beginning, with weight 1",
        "a was removed",
    )
    assert adopted.move((4, 0, 4, 2, 1, 3, 1)) == (0, 1, 3, 1, 0, 0, 0)


def test_parts_in_another_order_keep_their_positions():
    swapped = mixture({"b": part("b", 6, odd_batches), "a": part("a")}, [1, 2])
    adopted = swapped.adopt(fingerprint(mixture()))
    assert adopted.changes == ("its parts are in another order",)
    assert adopted.move((4, 0, 4, 2, 1, 3, 1)) == (0, 1, 3, 1, 0, 0, 4)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (mixture(stop="all"), "had stop='first' and has stop='all'"),
        (mixture({"x": part("a"), "y": part("b")}), "had the parts a, b and has x, y.*passing a dict"),
        (mixture({"a": part("a"), "c": part("c")}, named=False), "Whether c is new or a changed old part is unknown"),
        (mixture({"a": part("a", stage=odd), "b": part("b", 6, odd_batches)}), "The part 'a' .*give that another name"),
    ],
)
def test_changes_that_are_refused(changed, message):
    with pytest.raises(me.CheckpointMismatchError, match=message):
        changed.adopt(fingerprint(mixture()))


def test_a_checkpoint_of_something_else_is_refused():
    with pytest.raises(me.CheckpointMismatchError, match="not of a mixture"):
        mixture().adopt(part("a").fingerprint)


def test_a_cursor_of_another_width_is_refused():
    adopted = mixture(weights=[1, 1]).adopt(fingerprint(mixture()))
    with pytest.raises(me.CheckpointMismatchError, match="a cursor has 3 numbers, which do not fit the parts a, b"):
        adopted.move((1, 2, 3))


def test_a_description_whose_lists_disagree_is_damaged():
    damaged = fingerprint(mixture())
    damaged["pipeline"][0]["names"] = ["a"]
    with pytest.raises(ValueError, match="lists of parts have different lengths"):
        mixture().adopt(damaged)
