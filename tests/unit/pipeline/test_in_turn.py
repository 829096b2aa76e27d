from midepoch.pipeline.changing_schedule import NEVER
from midepoch.pipeline.in_turn import InTurn


def test_the_first_part_that_has_not_ended_is_due():
    assert InTurn.of([0, 0, 0]) == InTurn(3, 0)
    assert InTurn.of([1, 0, 0]) == InTurn(3, 1)
    assert InTurn.of([1, 1, 1]) is None


def test_all_draws_are_from_one_part():
    turn = InTurn(3, 1)
    assert turn.draw([0, 5, 0]) == 1
    assert turn.draws([0, 5, 0], [9, 4, 9], 7).tolist() == [1] * 4
    assert turn.drawn(6).tolist() == [0, 6, 0]
    assert turn.parts(3, 5).tolist() == [1, 1]
    assert [turn.draws_from(part) for part in range(3)] == [False, True, True]
    assert [turn.draw_of(part, 8) for part in range(3)] == [NEVER, 8, NEVER]


def test_counts_that_cannot_be_are_found():
    assert InTurn(2, 1).can_have_drawn([0, 3])
    assert not InTurn(2, 1).can_have_drawn([1, 3])
