"""Each stage says itself what callers need: its name, functions, counts, groups and schema."""

import pickle
from functools import partial, wraps

import pyarrow as pa
import pytest

from midepoch.stages.batch import Batch, Collate
from midepoch.stages.columns import AddColumn, CastColumns, Convert, FillColumns, RenameColumns, Select
from midepoch.stages.flow import Context, Flow
from midepoch.stages.functions import Filter, Map, MapBatches
from midepoch.stages.pack.documents import PackSpec
from midepoch.stages.pack.stream import PackStream
from midepoch.stages.pack.windows import PackWindows
from midepoch.stages.skip import SkipErrors
from midepoch.stages.stage import Call, name_of

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
CONTEXT = Context(seed=0, epoch=0, rows_until=0, locate=lambda key: ("file", key))


def function(item):
    return item


def call(stage):
    return Call(function=function, stage=stage, number=1)


def spec():
    return PackSpec(length=8, column="input_ids", overlong="cut", eos=None, pad=None, labels=None, number=1)


STAGES = {
    "map": Map(call=call("map")),
    "filter": Filter(call=call("filter")),
    "select": Select(names=("text",)),
    "rename": RenameColumns(names=(("id", "number"), ("text", None)), name="rename_columns"),
    "cast": CastColumns(types=(("id", pa.int8()),), name="cast"),
    "fill": FillColumns(columns=pa.schema([("id", pa.int64()), ("more", pa.int64())])),
    "add": AddColumn.of("more", pa.array([1, 2])),
    "convert": Convert(form="numpy"),
    "tensors": Convert(form="torch", by_loader=True),
    "batch": Batch(size=3),
    "full batch": Batch(size=3, drop_last=True),
    "collated batch": Batch(size=3, collate=function),
    "collate": Collate(function=function),
    "batched map": MapBatches(call=call("map"), size=5),
    "one-to-one batched map": MapBatches(call=call("map"), size=5, one_to_one=True),
    "batched filter": Filter(call=call("filter"), size=5),
    "checked filter": Filter(call=call("filter"), size=5, checks=True),
    "process": SkipErrors(call=call("process"), skip_log=None),
    "pack": PackWindows(spec=spec(), strategy="best_fit", window=7),
    "concat": PackStream(spec=spec()),
}
ONE_TO_ONE = (
    *("map", "one-to-one batched map", "select", "rename", "cast", "fill", "add", "convert", "tensors", "library"),
    *("collate", "process", "checked filter"),
)


@pytest.mark.parametrize("in_runs", [True, False])
def test_the_schema_is_known_until_a_function_changes_items(in_runs):
    selected = pa.schema([("text", pa.string())])
    known = dict.fromkeys(
        ["filter", "batched filter", "checked filter", "fill", "convert", "tensors", "library"], SCHEMA
    ) | {"select": selected}
    for key, stage in STAGES.items():
        inputs = Flow(row_runs=iter(()), schema=SCHEMA) if in_runs else Flow(single_items=iter(()), schema=SCHEMA)
        assert stage.flow(inputs, (0, 0), CONTEXT).schema == known.get(key), key


def test_the_columns_of_items_are_known_until_a_function_returns_them():
    names = dict.fromkeys(
        ["filter", "batched filter", "checked filter", "convert", "tensors", "library", "cast", "batch", "full batch"]
    )
    names |= {key: ["id", "text"] for key in names} | {"select": ["text"], "rename": ["number"]}
    names |= {"add": ["id", "text", "more"], "fill": ["id", "more", "text"]}
    for key, stage in STAGES.items():
        schema = stage.item_schema(SCHEMA)
        assert (None if schema is None else schema.names) == names.get(key), key
        assert stage.item_schema(None) is None


def test_a_column_that_is_not_there_leaves_the_schema_to_the_error_of_the_first_row():
    assert Select(names=("other",)).flow(Flow(row_runs=iter(()), schema=SCHEMA), (0,), CONTEXT).schema is None


def test_a_state_remembers_the_batch_size_only_if_a_later_stage_groups_the_batches():
    batch = STAGES["full batch"]
    assert batch.describe() is None
    assert batch.describe_as_input() == {"op": "batch", "n": 3, "drop_last": True}
    for key, stage in STAGES.items():
        if not isinstance(stage, Batch):
            assert stage.describe_as_input() == stage.describe(), key


def test_stages_can_be_sent_to_workers():
    for stage in STAGES.values():
        assert pickle.loads(pickle.dumps(stage)) == stage


def test_an_error_of_a_function_names_function_stage_and_row():
    def fails(item):
        raise KeyError(item)

    context = Context(seed=0, epoch=0, rows_until=2, locate=lambda key: ("a.arrow", key))
    with pytest.raises(KeyError) as raised:
        Call(function=fails, stage="map", number=1)("x", 1234, context)
    (note,) = raised.value.__notes__
    assert note.endswith("<locals>.fails), at row 1,234 of a.arrow")


def test_a_function_gets_the_same_random_numbers_for_the_same_item():
    def draw(item, rng):
        return int(rng.integers(1 << 60))

    def drawn(salt, key, epoch):
        context = Context(seed=5, epoch=epoch, rows_until=0, locate=lambda key: ("file", key))
        return Call(function=draw, stage="map", number=1, with_rng=True, salt=salt)(None, key, context)

    assert drawn(1, 7, 0) == drawn(1, 7, 0)
    assert len({drawn(1, 7, 0), drawn(2, 7, 0), drawn(1, 8, 0), drawn(1, 7, 1)}) == 4


def test_the_name_of_a_function_is_that_of_what_it_wraps():
    @wraps(function)
    def wrapped(item):
        return function(item)

    class Callable:
        def __call__(self, item):
            return item

    assert name_of(function) == name_of(wrapped) == "function"
    assert name_of(partial(function)) == "partial(function)"
    assert name_of(Callable()).endswith("Callable")
