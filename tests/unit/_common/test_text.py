"""Numbers and nouns in messages agree."""

import pytest

from midepoch._common.text import count, size_in_words


def test_one_is_singular_and_every_other_number_plural():
    assert count("file", 1) == "1 file"
    assert [count("file", number) for number in (0, 2, 1234)] == ["0 files", "2 files", "1,234 files"]


def test_a_noun_may_have_its_own_plural():
    assert [count("match", number, "matches") for number in (1, 2)] == ["1 match", "2 matches"]


@pytest.mark.parametrize(
    ("nbytes", "words"),
    [
        (0, "0 bytes"),
        (1000, "1000 bytes"),
        (1 << 10, "1 KiB"),
        (512 << 20, "512 MiB"),
        (3 << 29, "1.5 GiB"),
        (5 << 40, "5 TiB"),
    ],
)
def test_sizes_are_in_the_largest_unit(nbytes, words):
    assert size_in_words(nbytes) == words
