"""What a state remembers of sessions: only what differs, in order, never more than fits."""

import pytest

from midepoch.checkpoint.history import MOST_SESSIONS, SessionRecord, read_history, remember, sessions_of


def record(epoch=0, turn=0, ranks=2, rows=4, lanes=4, mode="example"):
    return SessionRecord(epoch, lanes, turn, ranks, rows, mode)


def after(*records):
    history = ()
    for one in records:
        history = remember(history, one)
    return history


def test_a_session_like_the_one_before_is_not_listed():
    assert after(record(), record(turn=10), record(epoch=1), record(epoch=1, turn=6)) == (record(),)


def test_a_session_with_other_ranks_or_batches_is_listed():
    records = (record(), record(turn=10, ranks=3), record(turn=16, ranks=3, rows=8), record(epoch=1, lanes=8))
    assert after(*records) == records


def test_what_was_undone_is_forgotten():
    history = after(record(), record(turn=10, ranks=3), record(epoch=1, lanes=2))
    assert remember(history, record(turn=6)) == (record(),)
    assert remember(history, record(ranks=5)) == (record(ranks=5),)


def test_an_epoch_whose_beginning_is_unknown_has_no_history():
    assert after(record(turn=4)) == ()
    assert after(record(), record(turn=4, lanes=5)) == ()
    assert sessions_of((record(turn=4),), 0) is None
    assert sessions_of((), 0) is None


def test_an_epoch_goes_on_as_the_one_before_ended():
    history = after(record(), record(turn=10, ranks=3), record(epoch=2, turn=9, ranks=1))
    assert sessions_of(history, 0) == list(history[:2])
    assert sessions_of(history, 1) == [record(epoch=1, ranks=3)]
    assert sessions_of(history, 2) == [record(epoch=2, ranks=3), record(epoch=2, turn=9, ranks=1)]


def test_the_oldest_sessions_are_forgotten():
    history = after(*(record(epoch=epoch, ranks=1 + epoch % 2) for epoch in range(100)))
    assert len(history) == MOST_SESSIONS
    assert history[-1].epoch == 99
    assert read_history([one.write() for one in history]) == history


@pytest.mark.parametrize(
    "value",
    [
        7,
        [[0, 4, 0, 2]],
        [[0, 4, 0, 2, 1, 2]],
        [[0, 4, 0, 10**12, 1, 0]],
        [[0, 4, 0, 2, 1, True]],
        [[1, 4, 0, 2, 1, 0], [0, 4, 0, 2, 1, 0]],
        [[epoch, 4, 0, 1, 1, 0] for epoch in range(MOST_SESSIONS + 1)],
    ],
)
def test_a_history_that_no_run_wrote_is_refused(value):
    with pytest.raises(ValueError, match=r"session|expected"):
        read_history(value)


def test_balanced_sessions_are_read_back_and_never_continue_others():
    first = SessionRecord(0, 8, 0, 2, 4, "example", 8)
    later = first._replace(turn=16)
    history = remember(remember((), first), later)
    assert history == (first, later)
    assert read_history([record.write() for record in history]) == history
    assert len(first._replace(balanced=0).write()) == 6
    for numbers in ([0, 8, 0, 2, 4, 0, 0], [0, 8, 0, 2, 4, 0, 7], [0, 8, 0, 2, 4, 0, 8, 1]):
        with pytest.raises(ValueError, match="session"):
            read_history([numbers])
