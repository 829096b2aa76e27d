"""Numbers and nouns in messages agree."""

from midepoch._common.text import count


def test_one_is_singular_and_every_other_number_plural():
    assert count("file", 1) == "1 file"
    assert [count("file", number) for number in (0, 2, 1234)] == ["0 files", "2 files", "1,234 files"]


def test_a_noun_may_have_its_own_plural():
    assert [count("match", number, "matches") for number in (1, 2)] == ["1 match", "2 matches"]
