"""What is read is written where another process finds it."""

from midepoch.sources.blocks import CurrentReads, written


def test_the_reads_under_way_are_written_and_no_others():
    reads, place = CurrentReads(), memoryview(bytearray(30))
    with reads.noted("before there is a place"):
        reads.write_to(place)
        assert written(place) == ""
    with reads.noted("a, block 1"):
        with reads.noted("b, block 2"), reads.noted(""):
            assert written(place) == "a, block 1; b, block 2"
        assert written(place) == "a, block 1"
    assert written(place) == ""


def test_names_that_are_too_long_are_cut():
    reads, place = CurrentReads(), memoryview(bytearray(b"x" * 10))
    reads.write_to(place[:9])
    with reads.noted("1234567é"):
        assert written(place[:9]) == "1234567\ufffd"
    assert bytes(place)[9:] == b"x"
