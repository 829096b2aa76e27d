"""``Dataset.pack``: what a pack holds, for every way in which documents come, and what is refused."""

import json
from itertools import islice, pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import midepoch as me
from midepoch.testing import same

DOCUMENTS = [[1, 2, 3], [4, 5], [], [6, 7, 8, 9, 10, 11, 12], [13], [14, 15, 16, 17]]
STRATEGIES = ["best_fit", "first_fit", "balanced", "concat"]


def table(**columns):
    made = {"input_ids": pa.array(DOCUMENTS, pa.list_(pa.int32())), "text": [f"text {n}" for n in range(6)]}
    return pa.table({**made, **columns})


def along(make):
    return pa.array([[make(token) for token in document] for document in DOCUMENTS])


@pytest.fixture
def write(tmp_path):
    def write(rows, name="data"):
        (tmp_path / name).mkdir()
        pq.write_table(rows, tmp_path / name / "part.parquet", row_group_size=4)
        return me.read(tmp_path / name)

    return write


def lists(packs, name="input_ids"):
    return [pack[name].tolist() for pack in packs]


def test_C3_concatenate_and_cut(write):
    packs = list(write(table()).pack(5, strategy="concat"))
    assert lists(packs) == [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10], [11, 12, 13, 14, 15], [16, 17]]
    assert lists(packs, "cu_seqlens") == [[0, 3, 5], [0, 5], [0, 2, 3, 5], [0, 2]]
    assert lists(packs, "position_ids") == [[0, 1, 2, 0, 1], [0, 1, 2, 3, 4], [0, 1, 0, 0, 1], [0, 1]]


def test_C3_windows_are_packed_one_after_the_other(write):
    packs = list(write(table()).pack(6, window=2))
    assert lists(packs) == [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11], [12], [13, 14, 15, 16, 17]]


@pytest.mark.parametrize(
    ("strategy", "overlong", "due"),
    [
        ("first_fit", "drop", [[1, 2, 3, 4, 5], [13, 14, 15, 16, 17]]),
        ("first_fit", "alone", [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11, 12], [13, 14, 15, 16, 17]]),
        ("concat", "drop", [[1, 2, 3, 4, 5], [13, 14, 15, 16, 17]]),
    ],
)
def test_C3_overlong_documents_as_asked(write, strategy, overlong, due):
    assert lists(write(table()).pack(5, strategy=strategy, overlong=overlong)) == due


def test_C6_what_attention_needs_is_there_and_padding_is_no_document(write):
    packs = list(write(table(attention_mask=along(lambda _: 1))).pack(6, pad=0, labels="input_ids"))
    first = packs[0]
    assert {name: values.tolist() for name, values in first.items()} == {
        "input_ids": [1, 2, 3, 12, 13, 0],
        "labels": [1, 2, 3, 12, 13, -100],
        "attention_mask": [1, 1, 1, 1, 1, 0],
        "position_ids": [0, 1, 2, 0, 0, 0],
        "document_ids": [0, 0, 0, 1, 2, -1],
        "cu_seqlens": [0, 3, 4, 5],
    }
    assert {name: str(values.dtype) for name, values in first.items()} == {
        "input_ids": "int32",
        "labels": "int32",
        "attention_mask": "int64",
        "position_ids": "int32",
        "document_ids": "int32",
        "cu_seqlens": "int32",
    }


def test_eos_ends_every_document_and_counts(write):
    rows = table(
        attention_mask=along(lambda _: 1),
        token_type_ids=along(lambda token: token % 2),
        loss_mask=along(lambda token: token % 2 == 0),
        labels=along(lambda token: -token),
    )
    packs = list(write(rows).pack(5, strategy="concat", eos=99))
    assert lists(packs) == [[1, 2, 3, 99, 4], [5, 99, 99, 6, 7], [8, 9, 10, 11, 12], [99, 13, 99, 14, 15], [16, 17, 99]]
    assert packs[1]["labels"].tolist() == [-5, 99, 99, -6, -7]
    assert packs[1]["token_type_ids"].tolist() == [1, 1, 0, 0, 1]
    assert packs[1]["loss_mask"].tolist() == [False, True, True, True, False]
    assert packs[1]["attention_mask"].tolist() == [1, 1, 1, 1, 1]
    assert list(packs[0])[:5] == ["input_ids", "labels", "attention_mask", "loss_mask", "token_type_ids"]
    whole = list(write(rows, "again").pack(5, eos=99, overlong="alone"))
    assert sorted(map(len, lists(whole))) == [5, 5, 5, 8]


def test_columns_go_along_by_name_and_never_because_they_happen_to_be_as_long(write):
    packs = list(write(table(scores=along(float), targets=along(lambda token: token + 1))).pack(6, labels="targets"))
    assert list(packs[0]) == ["input_ids", "labels", "position_ids", "document_ids", "cu_seqlens"]
    assert all((pack["labels"] == pack["input_ids"] + 1).all() for pack in packs)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_however_documents_come_the_packs_are_the_same(write, strategy):
    rows = table(attention_mask=along(lambda _: 1))
    options = {"strategy": strategy, "eos": 99, "pad": 0, "window": 4}
    whole = list(write(rows).pack(6, **options))

    def made_by(make):
        return lambda row: {name: make(row[name]) for name in ("input_ids", "attention_mask")}

    def all_by(make):
        return lambda columns: {name: [make(one) for one in columns[name]] for name in columns}

    arrays = {"input_ids": np.int32, "attention_mask": np.int64}
    base = me.read(write(rows, "b")._plan.pipeline.source.index.view.path(0))
    ways = {
        "lists": base.map(made_by(list)),
        "arrays": base.with_format("numpy").map(lambda row: {k: np.asarray(row[k], arrays[k]) for k in arrays}),
        "numpy": base.with_format("numpy"),
        "arrow": base.with_format("arrow").map(lambda batch: batch),
        "batched": base.map(all_by(list), batched=True, batch_size=4),
        "filtered": base.filter(lambda row: True),
        "filtered, as arrow": base.filter(lambda row: True).with_format("arrow"),
    }
    for name, way in ways.items():
        packs = list(way.pack(6, **options))
        assert [{k: v.tolist() for k, v in pack.items()} for pack in packs] == [
            {k: v.tolist() for k, v in pack.items()} for pack in whole
        ], name
        if name not in ("lists", "batched", "filtered", "filtered, as arrow"):
            assert same(packs, whole), name
    tensors = base.with_format("torch").map(made_by(lambda value: value)).pack(6, **options)
    for one, other in zip(tensors, whole, strict=True):
        assert all(isinstance(value, torch.Tensor) for value in one.values())
        assert same({name: value.numpy() for name, value in one.items()}, other)
    assert same(list(base.pack(6, **options).with_format("torch")), list(tensors))
    assert next(iter(base.pack(6, **options).with_format("python")))["input_ids"] == whole[0]["input_ids"].tolist()


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.uint16()), pa.large_list(pa.int64()), pa.list_(pa.int8()), pa.list_(pa.uint64())]
)
def test_tokens_keep_their_type_and_labels_have_room_for_the_ignored(write, kind):
    rows = pa.table({"tokens": pa.array(DOCUMENTS, kind)})
    pack = next(iter(write(rows).pack(32, column="tokens", pad=1, labels="tokens")))
    assert pack["tokens"].dtype == kind.value_type.to_pandas_dtype()
    assert pack["labels"][-1] == -100
    assert pack["labels"].dtype.kind == "i"


def test_a_pack_is_memory_of_its_own(write):
    for strategy in STRATEGIES:
        packs = list(write(table(), strategy).pack(5, strategy=strategy))
        for pack in packs:
            for values in pack.values():
                values[:] = 0
        assert all(not np.shares_memory(one["input_ids"], two["input_ids"]) for one, two in pairwise(packs))


def test_batches_of_padded_packs_are_stacked_and_of_others_lists_always(write):
    dataset = write(pa.table({"input_ids": pa.array([[1, 2, 3, 4]] * 4, pa.list_(pa.int64()))}))
    padded = next(iter(dataset.pack(5, pad=0).batch(2)))
    assert padded["input_ids"].shape == padded["position_ids"].shape == (2, 5)
    assert [type(ends) for ends in padded["cu_seqlens"]] == [np.ndarray] * 2
    ragged = next(iter(dataset.pack(5).map(lambda pack: pack).batch(2)))
    assert all(isinstance(column, list) for column in ragged.values())
    tensors = next(iter(me.Loader(dataset.pack(5).with_format("torch"), batch_size=2)))
    assert all(isinstance(one, torch.Tensor) for column in tensors.values() for one in column)
    assert all(isinstance(column, list) for column in tensors.values())
    alone = next(iter(dataset.pack(5, pad=0, overlong="alone").batch(2)))
    assert isinstance(alone["input_ids"], list)
    stream = next(iter(dataset.pack(5, strategy="concat").batch(2)))
    assert stream["input_ids"].shape == (2, 5)
    assert isinstance(stream["cu_seqlens"], list)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"length": 0}, ValueError, "length is 0; a pack needs room"),
        ({"length": 2.5}, TypeError, "length must be an integer"),
        ({"window": 0}, ValueError, "window is 0"),
        ({"strategy": "worst"}, ValueError, "strategy is 'worst'; it can be 'best_fit', 'first_fit'"),
        ({"overlong": "keep"}, ValueError, "overlong is 'keep'; it can be 'cut', 'drop', 'alone'"),
        ({"strategy": "concat", "overlong": "alone"}, ValueError, "'alone' has no meaning"),
        ({"eos": "</s>"}, TypeError, "eos must be an integer"),
        ({"pad": 0.0}, TypeError, "pad must be an integer"),
        ({"labels": 3}, TypeError, "labels is 3; name a column"),
        ({"column": "cu_seqlens"}, ValueError, "column is 'cu_seqlens'"),
        (
            {"column": "tokens"},
            me.SchemaMismatchError,
            "no column 'tokens'. There are: input_ids, text. Tokenise first",
        ),
        ({"labels": "targets"}, me.SchemaMismatchError, "no column 'targets'"),
        ({"column": "text"}, me.SchemaMismatchError, "'text', but it holds string. Tokenise first, with map"),
    ],
)
def test_what_cannot_be_packed_is_refused_when_it_is_asked_for(write, arguments, error, message):
    with pytest.raises(error, match=message):
        write(table()).pack(**{"length": 5, **arguments})


def test_pack_packs_rows_and_what_acts_on_rows_comes_before_it(write):
    dataset = write(table())
    with pytest.raises(ValueError, match=r"pack after batch is not possible: it packs rows.*Put pack first"):
        dataset.batch(2).pack(5)
    for strategy in STRATEGIES:
        packed = dataset.pack(5, strategy=strategy)
        for name in ("take", "skip", "shuffle"):
            with pytest.raises(ValueError, match=f"{name} after pack is not possible.*Put {name} first"):
                getattr(packed, name)(1)
        with pytest.raises(TypeError, match="how many items pack yields is only known by reading"):
            len(packed)
        with pytest.raises(ValueError, match="needs a pipeline whose number of items is known; no rank knows"):
            me.Loader(packed, even="pad")


@pytest.mark.parametrize("strategy", ["best_fit", "concat"])
@pytest.mark.parametrize(
    ("function", "message", "row"),
    [
        (lambda row: {"labels": [1]}, "'labels' has 1 value and 'input_ids' has 3 tokens in one row", 0),
        (lambda row: {"input_ids": row["text"]}, "'input_ids', but it holds a str. Tokenise first", 0),
        (lambda row: {"input_ids": [1.5]}, "'input_ids', but it holds values of the type float64", 0),
        (lambda row: {"input_ids": [[1], [2]]}, "holds an array of 2 dimensions", 0),
        (lambda row: {"input_ids": [[1], [2, 3]]}, "holds a list of unequal lists", 0),
        (lambda row: {"input_ids": None if 13 in row["input_ids"] else row["input_ids"]}, "holds a null", 4),
        (lambda row: {"a_mask": row["input_ids"]} if 6 in row["input_ids"] else {}, r"another .*'a_mask'", 3),
        (
            lambda row: {"input_ids": np.array(row["input_ids"], np.int16 if 4 in row["input_ids"] else np.int32)},
            "holds int32 in one row and int16 in another",
            1,
        ),
    ],
)
def test_a_row_that_cannot_be_packed_is_named(write, strategy, function, message, row):
    packs = write(table()).map(function).pack(64, strategy=strategy)
    with pytest.raises(ValueError, match=message) as caught:
        list(packs)
    assert caught.value.__notes__ == [f"midepoch: in pack, at row {row} of part.parquet"]


@pytest.mark.parametrize("strategy", ["best_fit", "concat"])
def test_a_null_in_a_file_is_named(write, strategy):
    for number, tokens in enumerate([[[1], None, [2]], [[1], [2, None], [3]]]):
        rows = pa.table({"input_ids": pa.array(tokens, pa.list_(pa.int32()))})
        with pytest.raises(ValueError, match=r"'input_ids' holds a null.*with a filter") as caught:
            list(write(rows, str(number)).pack(8, strategy=strategy))
        assert caught.value.__notes__ == ["midepoch: in pack, at row 1 of part.parquet"]


def test_lengths_that_differ_in_a_file_are_named(write):
    rows = table(attention_mask=pa.array([[1] * (len(one) + (number == 4)) for number, one in enumerate(DOCUMENTS)]))
    with pytest.raises(ValueError, match="'attention_mask' has 2 values and 'input_ids' has 1 token ") as caught:
        list(write(rows).shuffle(2, level="row").pack(8))
    assert caught.value.__notes__ == ["midepoch: in pack, at row 4 of part.parquet"]


def test_items_that_are_no_rows_and_tokens_that_do_not_fit(write):
    dataset = write(table())
    with pytest.raises(TypeError, match="needs rows, dicts of columns, but got a list"):
        list(dataset.map(lambda row: [1, 2]).pack(4))
    with pytest.raises(me.SchemaMismatchError, match="no column 'tokens'"):
        list(dataset.map(lambda row: row).pack(4, column="tokens"))
    small = dataset.map(lambda row: {"input_ids": np.array(row["input_ids"], np.uint8)})
    with pytest.raises(ValueError, match="eos=300 does not fit the type of 'input_ids', uint8"):
        list(small.pack(4, eos=300))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"length": 7}, "length of stage 1, pack, was 6 then and is 7 now"),
        ({"eos": 3}, "eos of stage 1, pack, was None then and is 3 now"),
        ({"overlong": "drop"}, "overlong of stage 1, pack, was 'cut' then"),
        ({"pad": 3}, "pad of stage 1, pack, was None"),
        ({"labels": "input_ids"}, "labels of stage 1, pack, was None"),
    ],
)
def test_C4_a_state_of_other_packs_is_refused_and_says_what_differs(write, strategy, change, message):
    dataset = write(table())
    first = dataset.pack(6, strategy=strategy)
    next(iter(first))
    with pytest.raises(me.CheckpointMismatchError, match=message):
        dataset.pack(**{"length": 6, "strategy": strategy, **change}).load_state_dict(first.state_dict())
    other = "first_fit" if strategy == "best_fit" else "best_fit"
    with pytest.raises(me.CheckpointMismatchError, match=f"strategy of stage 1, pack, was '{strategy}' then"):
        dataset.pack(6, strategy=other).load_state_dict(first.state_dict())
    if strategy != "concat":
        with pytest.raises(me.CheckpointMismatchError, match="window of stage 1, pack, was 1024 then and is 9 now"):
            dataset.pack(6, strategy=strategy, window=9).load_state_dict(first.state_dict())


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_C4_a_state_that_the_documents_cannot_have_given_is_refused(write, strategy):
    def shorter(row):
        return {"input_ids": row["input_ids"][: Cut.tokens]}

    class Cut:
        tokens = 99

    dataset = write(table()).map(shorter).pack(2, strategy=strategy)
    for cut in range(1, 6):
        Cut.tokens = 99
        first = dataset.with_format("numpy")
        list(islice(first, cut))
        state = json.loads(json.dumps(first.state_dict()))
        assert all(type(number) is int for _, cursor in state["cursors"] for number in cursor)
        if state["cursors"][0][1][-1]:
            Cut.tokens = 0
            second = dataset.with_format("numpy")
            second.load_state_dict(state)
            with pytest.raises(me.CheckpointMismatchError, match="or the data, has changed"):
                list(second)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_one_document_of_very_many_packs(write, strategy):
    rows = pa.table({"input_ids": pa.array([range(5), range(30_000), range(7)], pa.list_(pa.int32()))})
    packs = list(write(rows).pack(10, strategy=strategy))
    assert len(packs) == 3002
    assert sum(int(pack["input_ids"].sum()) for pack in packs) == sum(range(30_000)) + 10 + 21


def with_media(row):
    """Two pixels for each token, a scalar and a text; nothing of it for every third row."""
    number = int(row["text"].split()[1])
    return {
        "input_ids": row["input_ids"],
        "pixel_values": np.full((2 * len(row["input_ids"]), 3), number, np.float32) if number % 3 else None,
        "id": number,
        "text": row["text"],
    }


@pytest.mark.parametrize("strategy", ["best_fit", "first_fit", "balanced"])
def test_C1_other_columns_are_joined_in_the_order_of_a_packs_documents(write, strategy):
    owner = {token: number for number, document in enumerate(DOCUMENTS) for token in document}
    packs = list(write(table()).map(with_media).pack(7, strategy=strategy, window=4, overlong="drop", others="join"))
    for pack in packs:
        inside = list(dict.fromkeys(owner[token] for token in pack["input_ids"].tolist()))
        assert pack["id"] == inside
        assert pack["text"] == [f"text {number}" for number in inside]
        due = [number for number in inside if number % 3 for _ in range(2 * len(DOCUMENTS[number]))]
        if due:
            assert pack["pixel_values"].dtype == np.float32
            assert pack["pixel_values"].tolist() == [[number] * 3 for number in due]
        else:
            assert pack["pixel_values"] is None
    assert sorted(number for pack in packs for number in pack["id"]) == [0, 1, 3, 4, 5]


def test_masks_of_pixels_and_sounds_are_no_masks_of_tokens(write):
    def masked(row):
        return {"pixel_attention_mask": np.ones((1, 2), bool), "feature_attention_mask": np.ones((1, 3), np.int32)}

    pack = next(iter(write(table()).map(masked).pack(5, overlong="drop", others="join")))
    assert pack["pixel_attention_mask"].shape == (len(pack["cu_seqlens"]) - 1, 2)
    assert pack["feature_attention_mask"].shape == (len(pack["cu_seqlens"]) - 1, 3)
    assert "pixel_attention_mask" not in next(iter(write(table(), "b").map(masked).pack(5)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"others": "join"}, r"no document may be cut: pass overlong='drop' or 'alone'"),
        (
            {"others": "join", "strategy": "concat", "overlong": "drop"},
            "'concat' cuts documents.*others='join' does not allow",
        ),
        ({"others": "all"}, "others is 'all'; it can be 'drop' or 'join'"),
    ],
)
def test_others_that_cannot_be_joined_are_refused(write, options, message):
    with pytest.raises(ValueError, match=message):
        write(table()).pack(5, **options)
