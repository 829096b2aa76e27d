"""A checkpoint of the last batch of an epoch, in the integrations of frameworks: none shows an epoch of no batches."""

from types import SimpleNamespace

import pytest

import midepoch as me
from midepoch.distributed import all_epochs, epoch_is_over
from worlds import ids, is_kept, write_files

pytestmark = pytest.mark.filterwarnings("ignore")

EPOCHS = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("world"), [5, 7], ["stream"])


@pytest.fixture(params=["counted", "filtered"])
def build(request, folder):
    def build():
        dataset = me.read(folder).shuffle(1, window=20)
        return me.Loader(dataset.filter(is_kept) if request.param == "filtered" else dataset, batch_size=2)

    return build


@pytest.fixture
def whole(build):
    """The batches of each epoch."""
    loader = build()
    return [[ids([batch]) for batch in loader] for _ in range(EPOCHS)]


def state_at(build, batches):
    """The state that a loop over epochs has at its ``batches``-th batch."""
    loader = build()
    for _, _batch in zip(range(batches), all_epochs(loader), strict=False):
        state = loader.state_dict()
    return state


def accelerate_loader(build, state):
    accelerate = pytest.importorskip("accelerate")
    from midepoch.integrations.accelerate import prepare_loader

    loader = prepare_loader(accelerate.Accelerator(cpu=True), build())
    loader.load_state_dict(state)
    assert loader.state_dict() == state
    return loader


def ray_loader(build, state):
    pytest.importorskip("ray")
    from midepoch.integrations.ray import ReportingLoader

    loader = build()
    loader.load_state_dict(state)
    return ReportingLoader(loader, is_over=epoch_is_over(loader))


LOADERS = {"accelerate": accelerate_loader, "ray": ray_loader}


@pytest.mark.parametrize("framework", LOADERS)
@pytest.mark.parametrize("sets_epoch", [False, True])
def test_a_loop_from_the_epoch_of_the_loader(framework, sets_epoch, build, whole):
    length = len(whole[0])
    for done in range(1, len(whole) * length):
        loader = LOADERS[framework](build, state_at(build, done))
        first = loader.epoch
        assert first == done // length
        if build().batches_left is not None:
            assert len(loader) == length
        passes = []
        for epoch in range(first, EPOCHS):
            if sets_epoch:
                loader.set_epoch(epoch)
            passes.append([ids([batch]) for batch in loader])
        assert passes == [whole[first][done % length :], *whole[first + 1 :]]


@pytest.mark.parametrize("framework", LOADERS)
def test_a_loop_that_sets_the_finished_epoch(framework, build, whole):
    loader = LOADERS[framework](build, state_at(build, len(whole[0])))
    passes = []
    for epoch in range(EPOCHS):
        loader.set_epoch(epoch)
        passes.append([ids([batch]) for batch in loader])
    assert passes == [[], *whole[1:]]


def test_lightning_gets_the_first_batch_of_the_next_epoch(build, whole):
    pytest.importorskip("lightning")
    from midepoch.integrations.lightning import LoaderDataModule

    batches = [batch for epoch in whole for batch in epoch]
    for done in range(1, len(batches)):
        module = LoaderDataModule(build())
        module.setup("validate")
        module.load_state_dict(state_at(build, done))
        got = zip(range(len(batches) - done), module.train_dataloader(), strict=False)
        assert [ids([step.batch]) for _, step in got] == batches[done:]


def test_transformers_gets_the_first_batch_of_the_next_epoch(build, whole):
    pytest.importorskip("transformers")
    from midepoch.integrations.transformers import TrainerBatches

    batches = [batch for epoch in whole for batch in epoch]
    trainer = SimpleNamespace(
        state=SimpleNamespace(max_steps=len(batches), global_step=0),
        args=SimpleNamespace(gradient_accumulation_steps=1),
    )
    for done in range(1, len(batches)):
        loader = build()
        loader.load_state_dict(state_at(build, done))
        trainer.state.global_step = done
        assert [ids([batch]) for batch in TrainerBatches(trainer, loader)] == batches[done:]


def test_an_epoch_is_over_only_after_its_last_batch(build, whole):
    loader = build()
    assert not epoch_is_over(loader)
    seen = []
    for _batch in loader:
        seen.append(epoch_is_over(loader))
    assert seen == [False] * (len(whole[0]) - 1) + [True]
    assert loader.epoch == 1
    assert not epoch_is_over(loader)
