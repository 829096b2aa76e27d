"""What reading takes is counted, and nothing about the rows changes."""

from in_memory import run_of
from midepoch.sources.source import ReadCounts, sum_counts


def test_only_the_time_in_which_rows_are_made_counts():
    now = [10.0]

    def runs():
        for numbers in ([0, 1], [2, 3, 4]):
            now[0] += 2
            yield run_of(numbers)

    counts = ReadCounts()
    seen = []
    for run in counts.timed(runs(), lambda: now[0]):
        seen.append(len(run))
        now[0] += 100
    assert seen == [2, 3]
    assert (counts.seconds, counts.rows) == (4, 5)


def test_counts_of_parts_add_up():
    one = ReadCounts(1.0, 2, 3, 4, 5)
    assert sum_counts([one, one]) == ReadCounts(2.0, 4, 6, 8, 10)
    assert sum_counts([]) == ReadCounts()
