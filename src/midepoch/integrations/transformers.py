"""transformers: a Trainer that takes its batches from a Loader, and saves and resumes it with its checkpoints.

trainer = loader_trainer(Trainer)(model, args, loader=loader)
trainer.train(resume_from_checkpoint=True)
"""

import json
import math
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from midepoch.distributed import all_epochs, gather_state, read_state
from midepoch.errors import CheckpointMismatchError, needs
from midepoch.loader import Loader

with needs("transformers", "transformers", "midepoch.integrations.transformers"):
    from transformers import Trainer, TrainerCallback, TrainerState

FILE = "midepoch_loader.json"
UNSAVED = "The checkpoint was saved without loader_trainer(Trainer), or is damaged."


def loader_trainer(base: type[Trainer]) -> type[Trainer]:
    """A subclass of ``base``, a Trainer of transformers or one such as TRL's, with one more argument: ``loader=``.

    Batches come from the loader as they are: ``data_collator`` and ``remove_unused_columns`` do not apply to them.
    Every checkpoint has the loader's state, and ``resume_from_checkpoint`` loads it, on any number of processes. The
    Trainer's own skipping of batches is switched off. ``num_train_epochs`` counts the loader's epochs. It needs a
    counted pipeline without ``repeat``; else set ``max_steps``. An optimizer step may have batches of two epochs.
    """

    class LoaderTrainer(base):  # type: ignore[misc]
        def __init__(self, *args: Any, loader: Loader, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            if self.args.auto_find_batch_size:
                raise ValueError("auto_find_batch_size=True cannot change the batches of a Loader: leave it out.")
            self.args.ignore_data_skip = True  # the loader is already at the right position
            self._batches = TrainerBatches(self, loader)
            self.add_callback(self._batches)

        def get_train_dataloader(self) -> Any:
            """The batches of the loader: nothing that the Trainer could wrap, skip or rebuild."""
            return self._batches

        def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
            """Train from the beginning, or from a checkpoint: True is the newest complete one."""
            if resume_from_checkpoint is True:
                resume_from_checkpoint = str(newest_checkpoint(Path(self.args.output_dir)))
            checkpoint = Path(resume_from_checkpoint) if resume_from_checkpoint else None
            given = self.args.max_steps
            try:
                self.args.max_steps = self._batches.start(checkpoint)
                return super().train(resume_from_checkpoint, *args, **kwargs)
            finally:
                self.args.max_steps = given

        def save_model(self, output_dir: str | None = None, *args: Any, **kwargs: Any) -> None:
            """Write the model and, into a checkpoint, the loader's state. The Trainer's own state follows as the last.

            All processes call this during training.
            """
            super().save_model(output_dir, *args, **kwargs)
            if self.is_in_train and output_dir is not None:
                self._batches.save(Path(output_dir))

    LoaderTrainer.__name__ = LoaderTrainer.__qualname__ = f"Loader{base.__name__}"
    return LoaderTrainer


class TrainerBatches(TrainerCallback):  # type: ignore[misc]
    """The batches of a loader, epoch after epoch, until the Trainer has done all of its steps.

    As a callback it saves, evaluates and logs at the end of the loader's epochs, of which the Trainer knows nothing.
    """

    def __init__(self, trainer: Trainer, loader: Loader) -> None:
        self._trainer, self._loader, self._first_epoch = trainer, loader, loader.epoch
        self._whole_epochs = 0

    def start(self, checkpoint: Path | None) -> int:
        """Go to the position of a checkpoint, if there is one, and return the number of the last step."""
        self._first_epoch, done = self._loader.epoch, 0
        if checkpoint is not None:
            done = steps_of(checkpoint)
            saved = read_state(checkpoint / FILE, UNSAVED)
            self._first_epoch = saved["first_epoch"]
            self._loader.load_state_dict(saved["loader"])
        args = self._trainer.args
        if args.max_steps > 0:
            return int(args.max_steps)
        return done + math.ceil(self._left(float(args.num_train_epochs)) / int(args.gradient_accumulation_steps))

    def _left(self, epochs: float) -> float:
        """The number of batches from here to the end of training."""
        loader, left = self._loader, self._loader.batches_left
        if left is None or loader.plan.epochs_per_loop != 1:
            reason = loader.plan.why_not_counted() or "repeat() makes one loop of several epochs: leave it out"
            raise ValueError(f"num_train_epochs needs a known number of batches. Set max_steps, or: {reason}.")
        end = self._first_epoch + epochs
        whole = range(loader.epoch, math.ceil(end))
        lengths = [loader.plan.length(epoch) for epoch in whole]
        if not whole:
            return 0
        unused = lengths[-1] * (math.ceil(end) - end)  # of the last epoch, if the number of epochs is a fraction
        return max(0, left + sum(lengths[1:]) - unused)

    def save(self, checkpoint: Path) -> None:
        """Write the state of all ranks into a checkpoint."""
        state = gather_state(self._loader)
        if self._trainer.is_world_process_zero():
            temporary = checkpoint / f"{FILE}.tmp"
            temporary.write_text(json.dumps({"first_epoch": self._first_epoch, "loader": state}))
            temporary.rename(checkpoint / FILE)

    @property
    def epochs_done(self) -> float | None:
        """The epochs delivered since training began, as a fraction; None if the number of batches is not known."""
        left = self._loader.batches_left
        if left is None or not self._loader.plan.epochs_per_loop:
            return None
        length = self._loader.plan.length(self._loader.epoch) / self._loader.plan.epochs_per_loop
        return self._loader.epoch - self._first_epoch + (1 - left / length if length else 0)

    def __iter__(self) -> Iterator[Any]:
        state, args = self._trainer.state, self._trainer.args
        steps = state.max_steps - state.global_step
        return islice(all_epochs(self._loader), steps * args.gradient_accumulation_steps)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Refuse what cannot work before the first step, not after many."""
        done = self.epochs_done
        if done is None and "epoch" in (args.save_strategy, args.eval_strategy, args.logging_strategy):
            raise ValueError(
                "The strategy 'epoch' of the Trainer needs a pipeline whose number of batches is known. Use 'steps', "
                "or see dataset.why_not_counted()."
            )
        self._whole_epochs = int(done or 0)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Set the epoch that logs show, and what to do if one has ended."""
        done = self.epochs_done
        if done is None:
            return
        state.epoch = done
        if int(done) > self._whole_epochs and state.global_step < state.max_steps:
            control.should_log |= args.logging_strategy == "epoch"
            control.should_evaluate |= args.eval_strategy == "epoch"
            control.should_save |= args.save_strategy == "epoch"
        self._whole_epochs = int(done)


def newest_checkpoint(folder: Path) -> Path:
    """The newest checkpoint that was written to its end."""
    found = [path.parent for path in folder.glob(f"checkpoint-*/{FILE}")]
    for checkpoint in sorted(found, key=lambda path: int(path.name.removeprefix("checkpoint-")), reverse=True):
        try:
            steps_of(checkpoint)
        except CheckpointMismatchError:  # the run was killed while it was written
            continue
        return checkpoint
    raise CheckpointMismatchError(
        f"No folder checkpoint-* in {folder} is complete and has a {FILE}. Train with resume_from_checkpoint=None to "
        "start from the beginning."
    )


def steps_of(checkpoint: Path) -> int:
    """The number of optimizer steps before a checkpoint, from the last file that the Trainer writes."""
    try:
        return int(TrainerState.load_from_json(os.fspath(checkpoint / "trainer_state.json")).global_step)
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointMismatchError(
            f"{checkpoint} is not complete: its trainer_state.json cannot be read ({error}). Load an earlier one."
        ) from error
