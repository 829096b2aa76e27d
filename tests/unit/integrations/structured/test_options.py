"""One set of options for structured files and Iceberg tables, spelled out in four public signatures."""

import inspect
from dataclasses import fields

import pytest

import midepoch as me
from midepoch.integrations.structured.options import LOADER_OPTIONS, StructuredOptions

FIELDS = {field.name: field for field in fields(StructuredOptions)}
ONLY_FILES = {"partitioning"}
NOT_OF_LOADER = {"show_progress", "progress_interval_sec", "batch_size"}
IN_ORDER = [
    *("batch_size", "columns", "filters", "shuffle", "shuffle_seed", "split_bytes", "split_rows", "split_strategy"),
    *("num_workers", "output_format", "storage_options", "collate_fn", "partitioning", "num_ranks", "rank"),
    *("show_progress", "progress_interval_sec", "shuffle_buffer_size"),
]
"""The arguments after the path and the format that may be passed by position, as in torch-dataloader-utils."""
OF_ITS_LOADER = {"batch_size", "num_workers", "collate_fn", "show_progress", "progress_interval_sec"}
CALLS = {
    "StructuredDataset": (
        me.StructuredDataset.__init__,
        {"self", "path", "format", "files", *OF_ITS_LOADER},
        set(),
    ),
    "StructuredDataset.create_dataloader": (me.StructuredDataset.create_dataloader, {"path", "format"}, set()),
    "IcebergDataset": (
        me.IcebergDataset.__init__,
        {"self", "table", "catalog_config", "scan_filter", "snapshot_id", "schema_id"},
        ONLY_FILES,
    ),
    "IcebergDataset.create_dataloader": (
        me.IcebergDataset.create_dataloader,
        {"table", "catalog_config", "scan_filter", "snapshot_id", "schema_id"},
        ONLY_FILES,
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_public_signature_has_every_option_with_its_type_and_default(call):
    function, own, without = CALLS[call]
    parameters = dict(inspect.signature(function).parameters)
    for name in own:
        del parameters[name]
    loads = "create_dataloader" in call
    assert set(parameters) == set(FIELDS) - without | (set(LOADER_OPTIONS) if loads else set())
    for name in set(parameters) & set(FIELDS):
        by_position = call.startswith("Structured") and name in IN_ORDER
        assert (parameters[name].kind is inspect.Parameter.KEYWORD_ONLY) != by_position
        if name == "output_format":
            default = {"StructuredDataset": None, "IcebergDataset": "dict"}.get(call, "torch")
            assert parameters[name].default == default
        else:
            assert parameters[name].default == FIELDS[name].default
            assert parameters[name].annotation == FIELDS[name].type


@pytest.mark.parametrize("call", [call for call in CALLS if call.startswith("Structured")])
def test_arguments_by_position_come_in_the_order_of_torch_dataloader_utils(call):
    parameters = inspect.signature(CALLS[call][0]).parameters.values()
    names = [one.name for one in parameters if one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    assert [name for name in names if name != "self"] == ["path", "format", *IN_ORDER]


@pytest.mark.parametrize("call", [call for call in CALLS if "create_dataloader" in call])
def test_the_loader_options_are_those_of_the_loader(call):
    parameters = inspect.signature(CALLS[call][0]).parameters
    loader = inspect.signature(me.Loader.__init__).parameters
    for name in set(LOADER_OPTIONS) - NOT_OF_LOADER:
        assert parameters[name].default == loader[name].default
        by_position = call.startswith("Structured") and name in IN_ORDER
        assert (parameters[name].kind is inspect.Parameter.KEYWORD_ONLY) != by_position


@pytest.mark.parametrize(
    ("option", "value", "error"),
    [
        ("output_format", "pandas", "output_format is 'pandas'; it can be 'torch', 'numpy', 'arrow', 'dict'"),
        ("partitioning", "directory", "partitioning is 'directory'; it can be 'hive' or None"),
        ("trust_shared", "no", "trust_shared must be True or False, got 'no'"),
        ("split_bytes", "many", "split_bytes is 'many'"),
        ("split_bytes", 0, "split_bytes is 0; it must be at least 1"),
        ("split_rows", 0, "split_rows is 0; it must be at least 1"),
        ("shuffle_seed", 1.5, "shuffle_seed must be an integer"),
        ("shuffle_buffer_size", -1, "shuffle_buffer_size is -1; it must be at least 0"),
        ("split_strategy", object(), "No strategy is needed.*pass split_bytes or split_rows"),
        ("rank", 0, "rank is 0 and num_ranks is None; pass both, or neither"),
    ],
)
def test_a_wrong_option_raises_when_the_options_are_built(option, value, error):
    with pytest.raises((ValueError, TypeError), match=error):
        StructuredOptions(**{option: value})


def test_a_rank_must_be_one_of_the_ranks():
    with pytest.raises(ValueError, match="rank is 2 of 2; it must be between 0 and 1"):
        StructuredOptions(rank=2, num_ranks=2)


def test_options_are_picked_from_the_arguments_of_a_call():
    def call(path, columns=None, shuffle=False, num_workers=0):
        return StructuredOptions.of(locals(), partitioning=None)

    options = call("a", columns=["id"], num_workers=3)
    assert options == StructuredOptions(columns=["id"], partitioning=None)
    assert options.seed is None
    assert call("a", shuffle=True).seed == 42


def test_a_secret_is_not_in_the_repr():
    assert "hush" not in repr(StructuredOptions(storage_options={"secret": "hush"}))
