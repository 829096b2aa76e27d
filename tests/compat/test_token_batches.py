"""Padded batches in the Trainer of transformers and with accelerate: killed and resumed, those of one whole run."""

import numpy as np
import pytest
import torch

import midepoch as me
from worlds import write_documents

pytest.importorskip("transformers")
pytest.importorskip("accelerate")


@pytest.fixture
def folder(tmp_path):
    return write_documents(tmp_path / "data", np.random.default_rng(0).integers(1, 30, 60).tolist(), ["file"])


def loader_of(folder):
    rows = me.read(folder).shuffle(1).select_columns(["id", "input_ids"])
    return me.Loader(rows.batch_by_tokens(90, window=16), num_workers=1)


def test_F6_a_trainer_resumes_inside_of_a_window(folder, tmp_path):
    from transformers import Trainer, TrainingArguments

    from midepoch.integrations.transformers import loader_trainer

    def train(out, steps, resume=None):
        options = {"save_steps": 4, "report_to": [], "use_cpu": True, "disable_tqdm": True}
        arguments = TrainingArguments(output_dir=str(tmp_path / out), max_steps=steps, **options)
        model = Model()
        loader_trainer(Trainer)(model, arguments, loader=loader_of(folder)).train(resume_from_checkpoint=resume)
        return model.seen

    steps = len(loader_of(folder))
    whole = train("whole", steps)
    assert train("cut", 4) + train("cut", steps, resume=True) == whole
    assert sorted(number for batch in whole for number in batch) == list(range(60))


class Model(torch.nn.Module):
    """Notes the rows of its batches."""

    def __init__(self):
        super().__init__()
        self.weight, self.seen = torch.nn.Parameter(torch.zeros(1)), []

    def forward(self, input_ids, attention_mask, id, lengths):
        assert input_ids.shape == attention_mask.shape
        assert attention_mask.sum(dim=1).tolist() == lengths.tolist()
        self.seen.append(id.tolist())
        return {"loss": (self.weight - 1).square().sum() * attention_mask.float().mean()}


def test_F6_accelerate_saves_and_loads_inside_of_a_window(folder, tmp_path):
    from accelerate import Accelerator

    from midepoch.integrations.accelerate import prepare_loader

    whole = [batch["id"].tolist() for batch in loader_of(folder)]
    accelerator = Accelerator(cpu=True)
    loader, seen = prepare_loader(accelerator, loader_of(folder)), []
    for batch in loader:
        seen.append(batch["id"].tolist())
        if len(seen) == 5:
            accelerator.save_state(str(tmp_path / "saved"))
            break
    accelerator = Accelerator(cpu=True)
    loader = prepare_loader(accelerator, loader_of(folder))
    accelerator.load_state(str(tmp_path / "saved"))
    assert seen + [batch["id"].tolist() for batch in loader] == whole
