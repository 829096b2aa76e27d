"""Who asks for batches: a framework, its integration, its evaluation, or the user."""

import logging
from functools import partial

import pytest

import midepoch as me
from midepoch._common.frameworks import LINES, warning_of_framework
from midepoch._common.once import log_once
from worlds import write_files


def call_from(modules, function):
    """Call a function through frames of these modules, the innermost first; each is a name and its function."""
    for module, name in modules:
        namespace = {"__name__": module, "inner": function}
        exec(f"def {name}():\n    return inner()", namespace)
        function = namespace[name]
    return function()


FIT = ("lightning.pytorch.loops.fit_loop", "setup_data")
TRAIN = ("transformers.trainer", "_run_epoch")


@pytest.mark.parametrize(
    ("modules", "framework"),
    [
        ([FIT], "lightning"),
        ([("pytorch_lightning.loops.fetchers", "fetch")], "lightning"),
        ([TRAIN], "transformers"),
        ([("torch.utils.data.dataloader", "fetch"), ("accelerate.data_loader", "iterate")], "accelerate"),
        ([("accelerate.data_loader", "iterate"), TRAIN], "transformers"),
        ([("users", "own"), FIT], None),
        ([("midepoch.integrations.lightning", "batches"), FIT], None),
        ([("lightning.pytorch.loops.evaluation_loop", "run"), FIT], None),
        ([("transformers.trainer", "evaluation_loop"), TRAIN], None),
        ([("torch.utils.data.dataloader", "fetch")], None),
    ],
)
def test_a_framework_without_its_integration_is_found(modules, framework):
    message = call_from(modules, warning_of_framework)
    if framework is None:
        assert message is None
    else:
        assert message.startswith(framework)
        assert all(line in message for line in LINES[framework])


def test_a_loader_warns_once_and_so_does_the_dataset_that_was_taken_out_of_it(tmp_path, caplog):
    log_once.cache_clear()
    dataset = me.read(write_files(tmp_path, [20]))
    with caplog.at_level(logging.WARNING, logger="midepoch"):
        call_from([("accelerate.data_loader", "iterate")], partial(list, dataset))
        assert caplog.messages == []  # no Loader was made
        loader = me.Loader(dataset)
        for _ in range(2):
            call_from([FIT], partial(list, loader))
        call_from([("accelerate.data_loader", "iterate")], partial(list, loader.dataset))
    assert [message.partition(" ")[0] for message in caplog.messages] == ["lightning", "accelerate"]
