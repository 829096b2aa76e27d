"""Which training framework is asking for batches: found by looking at the callers, since a framework does not say."""

import sys
from types import FrameType

BETWEEN = ("midepoch", "torch", "multiprocessing")
"""Packages whose frames lie between an iterator and whoever asked for it."""
INTEGRATIONS = tuple(f"midepoch.integrations.{name}" for name in ("accelerate", "lightning", "transformers"))
EVALUATION = ("evaluation_loop", "evaluate", "predict", "prediction_loop", "run_evaluation")
LINES = {
    "transformers": (
        "from midepoch.integrations.transformers import loader_trainer",
        "trainer = loader_trainer(Trainer)(model, args, loader=loader)",
        "trainer.train(resume_from_checkpoint=True)",
    ),
    "lightning": (
        "from midepoch.integrations.lightning import LoaderDataModule",
        "trainer = Trainer(max_steps=...)",
        "trainer.fit(model, datamodule=LoaderDataModule(loader), ckpt_path='last')",
    ),
    "accelerate": (
        "from midepoch.integrations.accelerate import prepare_loader",
        "loader = prepare_loader(accelerator, loader)  # not accelerator.prepare(loader)",
        "accelerator.load_state(folder)  # and no skip_first_batches",
    ),
}
NAMES = {"pytorch_lightning": "lightning"}


def warning_of_framework() -> str | None:
    """What to say if a framework trains on a Loader without its integration, and would resume it wrongly.

    None if code of the user or an integration asks for the batches, or they are for an evaluation.
    """
    frame: FrameType | None = sys._getframe(1)
    found = None
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        package = module.partition(".")[0]
        package = NAMES.get(package, package)
        if module.startswith(INTEGRATIONS):
            return None
        if package in LINES:
            if frame.f_code.co_name in EVALUATION or module.rpartition(".")[2] in EVALUATION:
                return None
            found = package  # the outermost: a Trainer of transformers uses accelerate
        elif package not in BETWEEN or found is not None:
            break
        frame = frame.f_back
    if found is None:
        return None
    lines = "".join(f"\n    {line}" for line in LINES[found])
    return (
        f"{found} trains on this Loader without midepoch.integrations.{found}: its checkpoints miss the Loader's "
        f"position or have another one, so a resumed run may train on other rows. Use:{lines}"
    )
