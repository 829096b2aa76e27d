"""Split expressions, against those of `datasets`: the same rows, and errors in the same cases."""

import re

import pytest
from datasets import NamedSplit, ReadInstruction, Split
from hypothesis import example, given
from hypothesis import strategies as st

from midepoch.integrations.huggingface import LoadArguments, Term, _expression, parse, row_ranges, select_terms

COUNTS = st.fixed_dictionaries(
    {"train": st.integers(0, 100_000), "test": st.integers(0, 150), "a.b": st.integers(0, 9)}
)


def of_datasets(expression, counts):
    """What `datasets` makes of an expression, as (split, first row, row after the last).

    Term by term: `datasets` refuses some sums of percents and rows, of which we know the rows all the same.
    """
    terms = [ReadInstruction.from_spec(term) for term in re.split(r"\s*\+\s*", expression)]
    found = [one for term in terms for one in term.to_absolute(counts)]
    return [(one.splitname, one.from_, max(one.from_, one.to)) for one in found]


def ours(expression, counts):
    terms = select_terms(expression, list(counts), "it")
    bounds = [(term.split, *term.bounds(counts[term.split])) for term in terms]
    return [(split, start, max(start, stop)) for split, start, stop in bounds]


@st.composite
def bounds(draw, percent):
    sign = draw(st.sampled_from(["", "-"]))
    number = draw(st.integers(0, 105) if percent else st.integers(0, 120_000))
    digits = draw(st.sampled_from([str, "{:_}".format]))(number)
    return f"{sign}{digits}" + ("%" if percent and draw(st.integers(0, 5)) else "")


@st.composite
def terms(draw):
    split = draw(st.sampled_from(["train"] * 8 + ["test", "a.b", "other", ""]))
    if draw(st.booleans()) and not draw(st.integers(0, 3)):
        return split
    percent = draw(st.booleans())
    bound = st.one_of(st.just(""), bounds(percent))
    rounding = draw(st.sampled_from([""] * 5 + ["(closest)", "(up)"] if percent else [""]))
    return f"{split}[{draw(bound)}:{draw(bound)}]{rounding}"


EXPRESSIONS = st.lists(st.tuples(terms(), st.sampled_from(["+", " + ", "+ ", "  +\t"])), min_size=1, max_size=3).map(
    lambda parts: "".join(term + sign for term, sign in parts[:-1]) + parts[-1][0]
)


@given(EXPRESSIONS, COUNTS)
@example("train[50%:]", {"train": 5, "test": 0, "a.b": 0})  # half a row is rounded to the even one
@example("train[:75%]", {"train": 5, "test": 0, "a.b": 0})
@example("train[:10%]+train[90%:]", {"train": 25, "test": 0, "a.b": 0})
@example("train[-1_000:-1]", {"train": 2000, "test": 0, "a.b": 0})
@example("train[80:20]", {"train": 100, "test": 0, "a.b": 0})
@example("train[-100%:-0%]", {"train": 7, "test": 0, "a.b": 0})
def test_the_rows_are_those_of_datasets(expression, counts):
    try:
        expected = of_datasets(expression, counts)
    except ValueError:
        with pytest.raises(ValueError, match=r"split|rounding"):
            ours(expression, counts)
        return
    assert ours(expression, counts) == expected


@given(st.text("train+[]:%-_0159() ", max_size=14))
@example("train[1__0:]")
@example("train[_1:]")
@example("train[1_:]")
@example("train\n")
@example("")
def test_what_is_no_expression_for_datasets_is_none_here(expression):
    counts = {"train": 500, "t": 40}
    try:
        expected = of_datasets(expression.strip(), counts)
    except ValueError:
        with pytest.raises(ValueError, match=r"split|rounding"):
            ours(expression, counts)
        return
    assert ours(expression, counts) == expected


@pytest.mark.parametrize(
    "split",
    [
        Split.TRAIN,
        NamedSplit("test"),
        ReadInstruction("train", from_=10, to=20, unit="%"),
        ReadInstruction("train", from_=-10, to=None, unit="abs"),
        ReadInstruction("train", to=33, unit="abs") + ReadInstruction("test", from_=-3, unit="abs"),
    ],
)
def test_the_objects_of_datasets_are_taken_too(split):
    counts = {"train": 1234, "test": 17}
    expected = split if isinstance(split, ReadInstruction) else ReadInstruction.from_spec(split)
    assert ours(_expression(split), counts) == [
        (one.splitname, one.from_, one.to) for one in expected.to_absolute(counts)
    ]


def test_without_an_expression_there_must_be_one_split():
    assert select_terms(None, ["validation"], "it") == [Term(split="validation")]
    with pytest.raises(ValueError, match=r"it has the splits train, test: choose with split="):
        select_terms(None, ["train", "test"], "it")


def test_all_is_every_split_unless_one_is_called_so():
    assert [term.split for term in select_terms("all", ["train", "test"], "it")] == ["train", "test"]
    assert [term.split for term in select_terms(_expression(Split.ALL), ["train", "test"], "it")] == ["train", "test"]
    assert [term.split for term in select_terms("all", ["train", "all"], "it")] == ["all"]


def test_errors_say_what_was_asked_and_what_there_is():
    with pytest.raises(ValueError, match=r"split is 'train\[5\]'; write it as 'train'"):
        parse("train[5]")
    with pytest.raises(ValueError, match=r"it has no split 'tset'. It has: train, test"):
        select_terms("train+tset[:5]", ["train", "test"], "it")
    with pytest.raises(ValueError, match=r"percents must be between -100 and 100"):
        parse("train[:101%]")
    with pytest.raises(ValueError, match=r"\(pct1_dropremainder\)'; write it as"):
        parse("train[:10%](pct1_dropremainder)")
    with pytest.raises(ValueError, match=r"open one split at a time, or join them: 'train\+test'"):
        _expression(["train", "test"])


@pytest.mark.parametrize(
    ("expression", "rows"),
    [
        ("train[3:3]", "rows 3 to 3 of the 1,000 of 'train'"),
        ("train[800:-200]", "rows 800 to 800 of the 1,000 of 'train'"),
        ("train[2_000:]", "rows 1,000 to 1,000 of the 1,000 of 'train'"),
        ("train[50%:50%]", "rows 500 to 500 of the 1,000 of 'train'"),
        ("train[:0%]+test", "rows 0 to 0 of the 1,000 of 'train' and rows 0 to 0 of the 0 of 'test'"),
    ],
)
def test_an_expression_without_rows_raises(expression, rows):
    starts, counts = {"train": 0, "test": 1000}, {"train": 1000, "test": 0}
    with pytest.raises(ValueError, match=re.escape(f"split selects no rows, only {rows}. The first bound must")):
        row_ranges(parse(expression), starts, counts)
    assert row_ranges([*parse(expression), Term(split="train", stop=2)], starts, counts)[-1] == (0, 2)


def test_row_ranges_count_from_the_first_row_of_each_split():
    terms = parse("test[1:3]+train[-2:]+test")
    assert row_ranges(terms, {"train": 0, "test": 10}, {"train": 10, "test": 4}) == [(11, 13), (8, 10), (10, 14)]


def test_a_token_is_not_shown():
    arguments = LoadArguments(path="org/name", others={"token": "hf_hush", "storage_options": {"key": "hush"}})
    assert "hush" not in repr(arguments)
    assert "org/name" in repr(arguments)
