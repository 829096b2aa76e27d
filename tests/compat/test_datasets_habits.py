"""The same calls on a dataset of `datasets` and on ours give the same rows."""

import pyarrow as pa
import pytest

import midepoch as me
from hf import numbered

ROWS = 23


def ours():
    return me.from_hf(numbered(ROWS))


def theirs():
    """The dataset in memory, and the same as a stream."""
    return [numbered(ROWS), numbered(ROWS).to_iterable_dataset()]


def changed_in_place(row):
    row["id"] = [one + 1 for one in row["id"]] if isinstance(row["id"], list) else row["id"] + 1
    row["new"] = row["text"]
    return row


def made_anew(row):
    return {"new": row["text"], "text": row["text"]}


def popped(row):
    return {"new": row.pop("text")}


def popped_in_place(row):
    row["new"] = row.pop("text")
    return row


@pytest.mark.parametrize("removed", [["text"], ["text", "maybe"], ["text", "id"]])
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("function", [changed_in_place, made_anew, popped, popped_in_place])
def test_removed_columns_are_gone_whatever_a_function_returns(function, batched, removed):
    mapped = list(ours().map(function, batched=batched, remove_columns=removed))
    for other in theirs():
        assert mapped == list(other.map(function, batched=batched, remove_columns=removed))


def test_removed_columns_of_arrow_batches():
    def with_more(batch):
        return batch.append_column("new", batch["id"])

    mapped = ours().with_format("arrow").map(with_more, batched=True, remove_columns=["text"]).with_format("python")
    _, stream = theirs()
    expected = stream.with_format("arrow").map(with_more, batched=True, remove_columns=["text"])
    assert list(mapped) == list(expected.with_format(None))
    single = list(ours().with_format("arrow").map(with_more, remove_columns="text"))
    assert pa.Table.from_batches(single).to_pylist() == list(mapped)


@pytest.mark.parametrize("options", [{}, {"batched": True}, {"batched": True, "one_to_one": True}])
def test_a_column_that_does_not_exist_cannot_be_removed(options):
    with pytest.raises(me.SchemaMismatchError, match="remove_columns names 'txet', which is not among"):
        list(ours().map(changed_in_place, remove_columns="txet", **options))
    with pytest.raises(me.SchemaMismatchError, match="remove_columns names 'txet', which is not among"):
        list(ours().with_format("arrow").map(lambda batch: batch, remove_columns="txet", **options))
