"""concat(): one dataset after the other, exact through resumes, resizes and changes."""

from itertools import chain

import datasets
import pytest
from datasets.distributed import split_dataset_by_node as split_of_datasets

import midepoch as me
from midepoch.distributed import split_dataset_by_node
from worlds import ids, is_kept, table, write

SIZES = {"a": 21, "b": 0, "c": 34, "d": 5}


@pytest.fixture
def parts(tmp_path):
    first = 0
    for name, size in SIZES.items():
        (tmp_path / name).mkdir()
        write(tmp_path / name / f"{name}.arrow", table(first, size), "stream", 7)
        first += size
    return {name: me.read(tmp_path / name) for name in SIZES}


JOINED = {
    "plain": lambda parts: me.concat(list(parts.values())),
    "shuffled": lambda parts: me.concat([part.shuffle(seed=3) for part in parts.values()]).batch(4),
    "filtered": lambda parts: me.concat([parts["a"].filter(is_kept), parts["c"], parts["d"]]),
    "surveyed": lambda parts: me.concat([parts["a"].filter(is_kept).survey(), parts["c"]]).batch(2),
    "nested": lambda parts: me.concat([me.mix([parts["a"], parts["c"]], stop="all"), parts["d"]]),
    "mixed": lambda parts: me.mix([me.concat([parts["a"], parts["d"]]), parts["c"]], stop="all"),
}


def test_one_after_the_other(parts):
    joined = JOINED["plain"](parts)
    assert ids(joined) == list(range(60))
    assert len(joined) == 60
    assert joined.counted
    shuffled = [ids(part.shuffle(seed=3)) for part in parts.values()]
    assert ids(JOINED["shuffled"](parts)) == list(chain.from_iterable(shuffled))
    assert "part" not in repr(joined)
    assert "concat()" in repr(joined)


@pytest.mark.parametrize("name", JOINED)
def test_resumes_and_resizes(parts, name):
    joined = JOINED[name](parts)
    me.testing.assert_resumes(joined, every=4)
    me.testing.assert_elastic(joined.lanes(4), [(2, 1), (1, 3), (3, 1)])
    if joined.counted:
        assert sum(len(joined.shard(3, rank)) for rank in range(3)) == len(list(joined.lanes(3)))


def test_a_dataset_that_came_later(parts):
    first = me.concat({"a": parts["a"], "c": parts["c"]})
    items = iter(first)
    seen = [next(items)["id"] for _ in range(30)]
    second = me.concat({"a": parts["a"], "c": parts["c"], "d": parts["d"]})
    second.load_state_dict(first.state_dict())
    assert seen + ids(second) == list(range(60))


def test_mix_and_concat_are_not_the_same(parts):
    joined, mixed = me.concat([parts["a"], parts["c"]]), me.mix([parts["a"], parts["c"]], stop="all")
    with pytest.raises(me.CheckpointMismatchError, match="were joined by concat, and are joined by mix now"):
        mixed.load_state_dict(joined.state_dict())
    with pytest.raises(me.CheckpointMismatchError, match="were joined by mix, and are joined by concat now"):
        joined.load_state_dict(mixed.state_dict())


def test_what_is_refused(parts):
    with pytest.raises(TypeError, match=r"concat takes a list or a dict of datasets, got Dataset\. Pass \[a, b\]"):
        me.concat(parts["a"])
    with pytest.raises(TypeError, match=r"got Dataset\. Open it with midepoch\.from_hf\(dataset\)"):
        me.concat([datasets.Dataset.from_list([{"id": 1}])])
    with pytest.raises(ValueError, match=r"cannot have its own repeat\(\)\. Use repeat on the mixture"):
        me.concat([parts["a"].repeat(2)])
    with pytest.raises(ValueError, match="The datasets yield items of different kinds"):
        me.concat([parts["a"], parts["c"].batch(2)])


def test_names_of_datasets_lead_to_ours(parts):
    for name, remedy in (("concatenate_datasets", "midepoch.concat"), ("interleave_datasets", "midepoch.mix")):
        with pytest.raises(AttributeError, match=rf"no attribute '{name}'\. Use {remedy}"):
            getattr(me, name)
    for name in ("to_parquet", "push_to_hub", "set_transform"):
        assert not hasattr(parts["a"], name)
    with pytest.raises(AttributeError, match=r"no attribute 'to_parquet'\. midepoch does not write such files"):
        parts["a"].to_parquet("x")
    with pytest.raises(AttributeError, match=r"'Dataset' object has no attribute 'nothing'$"):
        _ = parts["a"].nothing


def test_nodes(parts):
    shards = [split_dataset_by_node(parts["c"].filter(is_kept), rank=rank, world_size=3) for rank in range(3)]
    assert sorted(ids(shards[0]) + ids(shards[1]) + ids(shards[2])) == ids(parts["c"].filter(is_kept))
    assert ids(split_dataset_by_node(parts["c"], 1, 2)) == ids(parts["c"].shard(2, 1))
    with pytest.raises(AttributeError, match=r"call dataset\.shard\(world_size, rank\)"):
        split_of_datasets(parts["c"], 1, 2)
    with pytest.raises(TypeError, match="takes a midepoch dataset, got int"):
        split_dataset_by_node(5, 1, 2)
