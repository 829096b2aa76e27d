"""loader_trainer: epochs, gradient accumulation and the end of training, with the real Trainer in this process."""

import json

import datasets
import pytest
import tokenizers
import torch

import midepoch as me
from worlds import ids, is_kept, write_files

pytestmark = pytest.mark.filterwarnings("ignore")
transformers = pytest.importorskip("transformers")

from midepoch.integrations.transformers import FILE, loader_trainer  # noqa: E402


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, id):
        return {"loss": self.layer(id[:, None].float()).mean()}


class Seen(transformers.TrainerCallback):
    def __init__(self):
        self.epochs = []

    def on_log(self, args, state, control, logs, **_):
        if "loss" in logs:
            self.epochs.append((state.global_step, logs["epoch"]))


def loader_of(folder, *, filtered=False, **options):
    dataset = me.read(folder / "data").shuffle(1, window=20).lanes(2).select_columns("id").with_format("torch")
    return me.Loader(dataset.filter(is_kept) if filtered else dataset, batch_size=4, **options)


def trainer_of(folder, loader, **arguments):
    arguments = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "logging_steps": 1, **arguments}
    args = transformers.TrainingArguments(output_dir=str(folder / "out"), **arguments)
    rows = []

    class Recording(loader_trainer(transformers.Trainer)):
        def training_step(self, model, inputs, *more):
            rows.append(ids([inputs]))
            return super().training_step(model, inputs, *more)

    seen = Seen()
    return Recording(Model(), args, loader=loader, callbacks=[seen]), rows, seen


@pytest.fixture
def folder(tmp_path):
    write_files(tmp_path / "data", [40], ["stream"])
    return tmp_path


def test_epochs_are_those_of_the_loader_with_accumulation_and_after_a_resume(folder):
    options = {"num_train_epochs": 3, "gradient_accumulation_steps": 5, "save_strategy": "epoch"}
    trainer, whole, seen = trainer_of(folder, loader_of(folder), **options)
    trainer.train()
    loader = loader_of(folder)
    assert whole == [ids([batch]) for _ in range(3) for batch in loader]
    assert seen.epochs == [(step, pytest.approx(step / 2)) for step in range(1, 7)]
    assert sorted(path.name for path in (folder / "out").iterdir()) == [f"checkpoint-{n}" for n in (2, 4, 6)]

    # Another batch size: twice as many batches are left, and twice as many steps.
    loader = me.Loader(loader_of(folder).dataset, batch_size=2)
    trainer, rest, _ = trainer_of(folder, loader, **options)
    trainer.train(resume_from_checkpoint=str(folder / "out" / "checkpoint-4"))
    assert sorted(row for rows in rest for row in rows) == list(range(40))
    assert trainer.state.global_step == 4 + 4

    trainer, rest, _ = trainer_of(folder, loader_of(folder), **options)
    trainer.train(resume_from_checkpoint=True)
    assert rest == []  # the newest checkpoint is that of the end


def test_a_filter_needs_steps_and_no_epochs(folder):
    with pytest.raises(ValueError, match="Set max_steps"):
        trainer_of(folder, loader_of(folder, filtered=True), num_train_epochs=1)[0].train()
    with pytest.raises(ValueError, match="strategy 'epoch'"):
        trainer_of(folder, loader_of(folder, filtered=True), max_steps=3, save_strategy="epoch")[0].train()
    loader = me.Loader(loader_of(folder).dataset.repeat(2), batch_size=4)
    with pytest.raises(ValueError, match="repeat"):
        trainer_of(folder, loader, num_train_epochs=1)[0].train()


def test_checkpoints_that_are_not_complete_are_passed_over_or_named(folder):
    loader = loader_of(folder)
    trainer, _, _ = trainer_of(folder, loader, max_steps=4, save_steps=2)
    trainer.train()
    out = folder / "out"
    (out / "checkpoint-4" / "trainer_state.json").write_text("{")
    trainer, rows, _ = trainer_of(folder, loader_of(folder), max_steps=4, save_strategy="no")
    trainer.train(resume_from_checkpoint=True)
    assert rows == [ids([batch]) for batch in loader_of(folder)][2:4]

    state = json.loads((out / "checkpoint-2" / FILE).read_text())
    assert state["loader"]["epoch"] == 0
    (out / "checkpoint-2" / FILE).unlink()
    with pytest.raises(me.CheckpointMismatchError, match="without loader_trainer"):
        trainer_of(folder, loader_of(folder))[0].train(resume_from_checkpoint=str(out / "checkpoint-2"))
    with pytest.raises(me.CheckpointMismatchError, match="is complete"):
        trainer_of(folder, loader_of(folder))[0].train(resume_from_checkpoint=True)


def test_a_trainer_of_trl_resumes_with_the_same_rows(folder):
    trl = pytest.importorskip("trl")
    placeholder = datasets.Dataset.from_dict({"input_ids": [[1, 2]]})
    words = tokenizers.models.WordLevel({"[UNK]": 0, "[EOS]": 1, "[PAD]": 2}, unk_token="[UNK]")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(words), unk_token="[UNK]", eos_token="[EOS]", pad_token="[PAD]"
    )

    def run(checkpoint):
        sizes = {"vocab_size": 64, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 1}
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=1))
        args = trl.SFTConfig(
            output_dir=str(folder / "out"),
            max_length=8,
            num_train_epochs=1,
            save_steps=3,
            use_cpu=True,
            bf16=False,
            report_to=[],
            disable_tqdm=True,
        )
        rows = []

        class Recording(loader_trainer(trl.SFTTrainer)):
            def training_step(self, model, inputs, *more):
                rows.append(inputs["input_ids"][:, 0].tolist())
                return super().training_step(model, inputs, *more)

        loader = loader_of(folder, collate_fn=as_tokens)
        trainer = Recording(model, args, processing_class=tokenizer, train_dataset=placeholder, loader=loader)
        trainer.train(resume_from_checkpoint=checkpoint)
        return rows

    whole = run(None)
    assert sorted(row for rows in whole for row in rows) == list(range(40))
    assert run(str(folder / "out" / "checkpoint-3")) == whole[3:]


def as_tokens(items):
    tokens = torch.tensor([[int(item["id"])] * 4 for item in items])
    return {"input_ids": tokens, "labels": tokens.clone(), "attention_mask": torch.ones_like(tokens)}


def test_what_a_loader_cannot_do_is_refused(folder):
    with pytest.raises(ValueError, match="auto_find_batch_size"):
        trainer_of(folder, loader_of(folder), auto_find_batch_size=True)
