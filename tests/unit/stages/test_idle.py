"""A mixture that starts over for ever, of which nothing is left, is an error and no loop without an end."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import midepoch as me


@pytest.fixture(autouse=True)
def _few_rows(monkeypatch):
    monkeypatch.setattr("midepoch.stages.flow.IDLE_ROWS", 5000)


def documents(path, rows):
    pq.write_table(pa.table({"input_ids": pa.array(rows, pa.list_(pa.int64()))}), path)
    return me.read(path)


def endless(tmp_path, first, second, weights=(1, 1)):
    parts = [documents(tmp_path / f"{number}.parquet", rows) for number, rows in enumerate((first, second))]
    return me.mix(parts, weights, stop="never")


@pytest.mark.parametrize("strategy", ["concat", "best_fit"])
@pytest.mark.parametrize("rows", [[[], [], []], [[1] * 9]], ids=["empty", "too long"])
def test_pack_without_tokens(tmp_path, strategy, rows):
    packed = endless(tmp_path, rows, [[]] * 5).pack(8, strategy=strategy, overlong="drop")
    with pytest.raises(ValueError, match=r"made no item of 5,000 rows.* pack gets no tokens"):
        next(iter(packed))
    with pytest.raises(ValueError, match="pack gets no tokens"):
        next(iter(me.Loader(packed, num_workers=0)))


@pytest.mark.parametrize("strategy", ["concat", "best_fit"])
def test_few_tokens_of_many_passes_are_packed(tmp_path, strategy):
    rows = iter(endless(tmp_path, [[], [7]], [[]]).pack(50, strategy=strategy, window=500))
    for _ in range(3):
        assert set(next(rows)["input_ids"]) == {7}


@pytest.mark.parametrize("weights", [(1, 1), (1000, 1), (0, 1)])
def test_a_part_that_comes_seldom_is_waited_for(tmp_path, weights):
    rows = iter(endless(tmp_path, [[]], [[7]], weights).pack(1, strategy="concat"))
    assert [next(rows)["input_ids"].tolist() for _ in range(3)] == [[7]] * 3


def test_a_filter_that_keeps_nothing(tmp_path):
    mixture = endless(tmp_path, [[1], [2]], [[3]])
    with pytest.raises(ValueError, match="a filter keeps none"):
        next(iter(mixture.filter(lambda row: False)))
    rows = iter(mixture.filter(lambda row: row["input_ids"] == [3]))
    assert [next(rows)["input_ids"] for _ in range(30)] == [[3]] * 30


def test_a_function_that_returns_nothing_is_named_after_a_mixture_too(tmp_path):
    for stop in ("never", "all"):
        mixture = me.mix([documents(tmp_path / f"{stop}-{n}.parquet", [[1]]) for n in (0, 1)], stop=stop)
        for changed in (mixture.filter(lambda row: None), mixture.map(lambda row: None)):
            with pytest.raises(TypeError, match=r"returned None\. It must return"):
                list(changed)
