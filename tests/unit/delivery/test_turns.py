"""Turns: cut anywhere and put together again, they are the same turns."""

from itertools import chain, pairwise

from hypothesis import given
from hypothesis import strategies as st

from midepoch.delivery.turns import in_succession, one_by_one, round_robin
from simulation import cursor_after, turns_of


def listed(turns):
    """The item of each turn, or None, after a look at its cursor and hash."""
    items = []
    for turn in one_by_one((turns,)):
        assert turn.number == 1
        if turn.empty:
            items.append(None)
            continue
        (item,) = turn.items
        assert [*turn.cursors] == [cursor_after(item)]
        assert turn.hashes.tolist() == [item[1]]
        items.append(item)
    return items


def made(items):
    return turns_of(items, [item[1] for item in items if item is not None])


def lanes(sizes, empty):
    """For each lane its items, and None where it has run out."""
    return [[None if empty(lane, row) else (lane, row) for row in range(size)] for lane, size in enumerate(sizes)]


@given(st.lists(st.booleans(), min_size=1, max_size=12), st.data())
def test_parts_in_succession_are_what_was_cut(full, data):
    (items,) = lanes([len(full)], lambda _, row: not full[row])
    turns = made(items)
    cuts = sorted({0, len(items), *data.draw(st.sets(st.integers(0, len(items))))})
    parts = [turns.cut(begin, end) for begin, end in pairwise(cuts)]
    assert [listed(part) for part in parts] == [items[begin:end] for begin, end in pairwise(cuts)]
    assert listed(in_succession(parts)) == items


@given(st.integers(1, 4), st.integers(1, 5), st.data())
def test_one_turn_of_each_part_comes_then_the_next_of_each(parts, turns, data):
    empty = data.draw(st.sets(st.tuples(st.integers(0, 3), st.integers(0, 4))))
    of_lanes = lanes([turns] * parts, lambda lane, row: (lane, row) in empty)
    together = round_robin([made(items) for items in of_lanes])
    assert listed(together) == [*chain.from_iterable(zip(*of_lanes, strict=True))]


@given(st.lists(st.booleans(), min_size=1, max_size=9))
def test_the_turns_until_an_item_end_with_its_own(full):
    (items,) = lanes([len(full)], lambda _, row: not full[row])
    ends = [0, *(place + 1 for place, item in enumerate(items) if item is not None)]
    turns = made(items)
    assert [turns.turns_until(number) for number in range(len(ends))] == ends
